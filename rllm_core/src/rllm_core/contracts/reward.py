"""Rewards: how good an attempt was, by what was asked and what the model replied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from rllm_core.data.messages import Message, Response


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """What a reward looks at: one finished attempt at a task."""

    data: Mapping[str, Any]
    """The task's data, such as ``{"question": …, "answer": …}``."""
    messages: Sequence[Message]
    """The whole conversation, the last reply included."""
    response: Response
    """The last reply, taken apart. Its `finish_reason` says whether it was cut off."""
    response_tokens: int
    """How many tokens the model sampled over all turns."""
    state: Any = None
    """What the environment tells of the world at the end; see `Environment.final_state`."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a reward says of an attempt."""

    value: float | None
    """The reward, finite. None: it is missing, `feedback` says why, and `rllm.algorithm.on_missing_reward` decides."""
    correct: bool | None = None
    """Whether the task is solved. None: this reward cannot tell."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Parts that estimators such as `gdpo` look at, such as ``{"format": 1.0}``."""
    extracted: str | None = None
    """What was taken for the answer. Episode logs keep it, as ``info.extracted`` of the trajectory."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Figures of the attempt; averaged over episodes."""
    feedback: str = ""
    """One line for people: why the value is what it is."""


class Reward(Protocol):
    """Computes one reward. May be a coroutine function.

    Returns a `Score`, a number, a mapping with the fields of `Score`, or None where there is no reward. Whatever it
    raises makes the reward a missing one.
    """

    def __call__(
        self, rollout: Rollout, /
    ) -> Score | float | Mapping[str, Any] | Awaitable[Score | float | Mapping[str, Any] | None] | None: ...


@dataclass(frozen=True, kw_only=True)
class RewardPlugin(Plugin[ParamsT]):
    """Offers a reward. Chosen by ``rllm.reward``, a list; ``weight`` beside a name says how much it counts.

    Estimators that standardise each part of a reward, such as `gdpo`, have weights of their own: they would see the
    sign of these and not their size, so that other sizes than 1 are refused with them.
    """

    kind: ClassVar[str] = "reward"

    load: Callable[[], Callable[[Any], Reward]]
    """Returns a factory that takes the options and makes the reward for one run."""
    needs: frozenset[str] = frozenset()
    """Keys of a task's data that it reads, such as ``answer``; an attempt at a task without them has no reward."""
    check_task: Callable[[Any, Mapping[str, Any]], None] | None = None
    """Takes the options and the data of a task, and raises ConfigError for one that it cannot score. Called with the
    first tasks by ``--dry-run``, ``rllm config validate`` and before a run starts."""
    sources: Callable[[Any], Mapping[str, str]] | None = None
    """Takes the options and returns what beside them decides the reward, name to text: a file and what it holds, a
    library and its version. Checkpoints hold it. A resumed run with another text stops, unless
    ``rllm.trainer.on_changed_source`` is ``warn``."""
    timeout: float = 60.0
    """Seconds that one attempt may take; longer makes the reward a missing one."""
    blocking: bool = True
    """Whether a plain function may wait for something (a process, a network): it then runs in its own thread."""
