"""The data of a run: Task, Step, Trajectory, Episode, TrajectoryGroup. They are plain data, with views as their only
methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rllm_core.data.messages import Message
from rllm_core.data.token_buffer import TokenBuffer, TokenSpan
from rllm_core.data.version_spans import VersionSpan, check_version_spans


class TerminationReason(str, Enum):
    """The reason why an episode ended. The masks of `rllm.compact_filtering` have the same names.

    The workflow sets it (`rllm_core.rollout.workflows`). `rllm_core.rollout.runner` sets it for rollouts that fail or
    time out.
    """

    ENV_DONE = "env_done"
    MAX_TURNS_EXCEEDED = "max_turns_exceeded"
    MAX_PROMPT_LENGTH_EXCEEDED = "max_prompt_length_exceeded"
    MAX_RESPONSE_LENGTH_EXCEEDED = "max_response_length_exceeded"
    TIMEOUT = "timeout"
    ERROR = "error"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Task:
    """A problem. Workflows and environments receive `data`. `data_source` is the name of the task's row in validation
    tables."""

    id: str
    data: Mapping[str, Any] = field(default_factory=dict)
    data_source: str = "default"


class Step:
    """One model call: a span of its trajectory's token buffer, with the reward of the call.

    ``Step(prompt_ids=[1, 2], response_ids=[3], logprobs=[-0.1])`` makes a separate step with its own buffer. A
    trajectory copies such steps into its single buffer when its tokens are first needed. Missing log-probs are unknown.
    The trainer then computes the old log-probs of these tokens.

    `version_spans` are spans of response tokens by the weight version that sampled them, in order. `weight_version` is
    the oldest of these versions. If `version_spans` is empty, all tokens have the version `weight_version`.

    `messages` are the messages since the model's last response, if the workflow provides them. They are only for
    display and are not used in training.

    Raises:
        ValueError: lengths do not match (see `TokenBuffer.append_turn`), or `version_spans` do not cover the response.
    """

    __slots__ = ("advantage", "buffer", "info", "messages", "reward", "span", "text", "version_spans", "weight_version")

    def __init__(
        self,
        prompt_ids: ArrayLike = (),
        response_ids: ArrayLike = (),
        logprobs: ArrayLike | None = None,
        *,
        reward: float | None = None,
        advantage: float | Sequence[float] | None = None,
        text: str = "",
        weight_version: int = 0,
        version_spans: Iterable[VersionSpan] = (),
        info: dict[str, Any] | None = None,
        messages: Sequence[Message] = (),
    ) -> None:
        buffer = TokenBuffer()
        self._place(buffer, buffer.append_turn(prompt_ids, response_ids, logprobs))
        self._describe(reward, advantage, text, weight_version, version_spans, info, messages)

    def _describe(
        self,
        reward: float | None = None,
        advantage: float | Sequence[float] | None = None,
        text: str = "",
        weight_version: int = 0,
        version_spans: Iterable[VersionSpan] = (),
        info: dict[str, Any] | None = None,
        messages: Sequence[Message] = (),
    ) -> None:
        self.reward = reward
        self.advantage = advantage
        self.text = text
        self.weight_version = weight_version
        self.info = {} if info is None else info
        self.messages = messages
        self.version_spans = tuple(version_spans)
        check_version_spans(self.version_spans, self.span.end - self.span.response_start, weight_version)

    def _place(self, buffer: TokenBuffer, span: TokenSpan) -> None:
        self.buffer: TokenBuffer = buffer
        self.span: TokenSpan = span

    @property
    def prompt_ids(self) -> NDArray[np.int32]:
        """All tokens of the prompt, including earlier turns. A view."""
        return self.buffer.ids[self.span.segment_start : self.span.response_start]

    @property
    def response_ids(self) -> NDArray[np.int32]:
        """The sampled tokens. A view."""
        return self.buffer.ids[self.span.response_start : self.span.end]

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """Log-probs of `response_ids` at the time of sampling, NaN if unknown. A view."""
        return self.buffer.logprobs[self.span.response_start : self.span.end]

    def __repr__(self) -> str:
        return f"Step({len(self.prompt_ids)} prompt + {len(self.response_ids)} response tokens, reward={self.reward})"


class Trajectory:
    """The part of an episode that belongs to one agent role, whose name is `name`. Its steps share one token buffer."""

    __slots__ = ("_buffer", "info", "name", "reward", "steps", "uid")

    def __init__(
        self,
        name: str = "",
        steps: Iterable[Step] = (),
        reward: float | None = None,
        *,
        uid: str = "",
        info: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.steps = list(steps)
        self.reward = reward
        self.uid = uid
        self.info = {} if info is None else info
        self._buffer = TokenBuffer()

    def add_step(
        self, prompt_ids: ArrayLike, response_ids: ArrayLike, logprobs: ArrayLike | None, **fields: Any
    ) -> Step:
        """Append a model call directly to the token buffer. `fields` are the keyword arguments of `Step`."""
        buffer = self.tokens
        step = Step.__new__(Step)  # `Step(…)` would make a second buffer, a third of the cost of a call
        step._place(buffer, buffer.append_turn(prompt_ids, response_ids, logprobs))
        step._describe(**fields)  # if this raises, the buffer has one turn too many, and `tokens` rebuilds it
        self.steps.append(step)
        return step

    @property
    def tokens(self) -> TokenBuffer:
        """The single buffer of all steps. It is rebuilt if separate steps were added to `steps` or steps were
        removed."""
        inside = [step.buffer for step in self.steps].count(self._buffer)
        if not inside == len(self.steps) == self._buffer.turns:
            buffer = TokenBuffer()
            for step in self.steps:
                step._place(buffer, buffer.append_turn(step.prompt_ids, step.response_ids, step.logprobs))
            self._buffer = buffer
        return self._buffer

    @property
    def response_length(self) -> int:
        """Number of tokens that the model sampled in all steps."""
        return sum(step.span.end - step.span.response_start for step in self.steps)

    def __repr__(self) -> str:
        return f"Trajectory({self.name!r}, {len(self.steps)} steps, reward={self.reward})"


@dataclass(kw_only=True)
class Episode:
    """One rollout of a task."""

    id: str
    """The id, ``"{task_id}:{rollout_idx}"``."""
    trajectories: list[Trajectory] = field(default_factory=list)
    is_correct: bool = False
    termination_reason: TerminationReason = TerminationReason.UNKNOWN
    metrics: dict[str, float] = field(default_factory=dict)
    data_source: str = "default"
    error: str = ""
    """The error, if `termination_reason` is ``error`` or ``timeout``."""

    @property
    def task_id(self) -> str:
        return self.id.rpartition(":")[0]

    @property
    def rollout_idx(self) -> int:
        return int(self.id.rpartition(":")[2])


@dataclass(kw_only=True)
class TrajectoryGroup:
    """Trajectories whose rewards are compared with each other."""

    group_id: str
    trajectories: list[Trajectory]
    metadata: list[dict[str, Any]] = field(default_factory=list)
    """One entry per trajectory: ``task_id``, ``rollout_idx``, ``is_correct``, ``termination_reason``, …"""

    @property
    def group_role(self) -> str:
        """The part of `group_id` after the last colon. ``all_groups`` if it has no colon."""
        _, colon, role = self.group_id.rpartition(":")
        return role if colon else "all_groups"
