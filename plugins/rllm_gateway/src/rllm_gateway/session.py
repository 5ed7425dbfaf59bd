"""Sessions: one attempt at a task, as the trainer opens it and as it gets it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rllm_core.data.messages import Message, Tool
from rllm_gateway.calls.rows import CallRow
from rllm_gateway.client import DEFAULT_ROLE

Ending = Literal["closed", "failed"]
"""``failed``: a call could not be stored, so that the trace is not whole."""
TASK, TASK_ID, LABEL, TEMPERATURE, TOKENIZER = "task", "task_id", "label", "temperature", "tokenizer"
BATCH = "task_batch"
"""Keys of a stored session's metadata."""
VALIDATION = "val"
"""The `LABEL` of what is not trained on."""


@dataclass(frozen=True, kw_only=True)
class SessionSpec:
    """What the trainer says of a session when it opens one. All of it is JSON data."""

    id: str
    """Uid of the attempt with its try, part of URLs: letters, digits, ``-``, ``_``, ``.``, ``~`` and ``:``."""
    run: str
    """Name of the run."""
    rollout: str
    """Uid of the attempt at a task."""
    retry: int = 0
    """Which try of the attempt, from 0."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Of the task."""
    task_id: str = ""
    """Says what is one task, whatever its metadata; empty: nobody chose one."""
    label: Literal["train", "val"] = "train"
    task_batch: int | None = None
    """As `WorkflowContext.task_batch`; None: the session belongs to no batch of a run."""
    max_tokens: int
    """Most tokens of one reply."""
    max_prompt_length: int | None = None
    """Most tokens of a prompt. What has far more characters is refused before it is rendered; None: nothing is."""
    max_calls: int = 1000
    """Most replies that are sampled; later calls are refused."""
    temperature: float = 1.0
    """What its replies are sampled at; stored, so that their log-probs mean something later."""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    """What the renderer was made with; conversations under other options share no prefix."""
    accumulate_reasoning: bool = False
    """As ``rllm.accumulate_reasoning``."""
    group_key: str | None = None
    """Key of a request's ``metadata`` that splits trajectories further (``rllm.sdk.processing.groupby_key``)."""
    name_key: str | None = None
    """Key of a request's ``metadata`` that names them (``rllm.sdk.processing.traj_name_key``)."""
    unsupported: Literal["refuse", "ignore"] = "refuse"
    """What becomes of parameters that nothing can act on: a 400, or counted as ignored."""
    keeps_messages: bool = False
    """Whether the trace has the last conversation; rewards look at it."""


@dataclass(frozen=True, kw_only=True)
class OpenedSession:
    """How an agent reaches its session."""

    id: str
    key: str
    """The API key of its clients. Only its hash is stored."""
    url: str
    """``http://127.0.0.1:4000/s/<id>``."""

    def openai_url(self, role: str = DEFAULT_ROLE) -> str:
        """``OPENAI_BASE_URL`` of the agent in this role."""
        return f"{self.url}/{role}/v1"

    def anthropic_url(self, role: str = DEFAULT_ROLE) -> str:
        """``ANTHROPIC_BASE_URL`` of the agent in this role."""
        return f"{self.url}/{role}"


@dataclass(frozen=True, kw_only=True)
class TracedCall:
    """One reply of the model; its tokens are with the trainer, under the same id."""

    id: str
    parent: str | None
    """The call that its prompt begins with, prompt and reply, token for token. None: it begins with none."""
    role: str
    name: str | None
    """Value of `SessionSpec.name_key`; None: the request has none."""
    group: str | None
    """Value of `SessionSpec.group_key`; None: the request has none."""
    delivered: bool
    """Whether the client was still there when it was answered. If not, the call is not trained on."""


def traced_call(row: CallRow, delivered: bool) -> TracedCall:
    """What a trace says of a stored call."""
    return TracedCall(id=row.id, parent=row.parent, role=row.role, name=row.name, group=row.group, delivered=delivered)


@dataclass(frozen=True, kw_only=True)
class Said:
    """A conversation that ends with a reply of the model."""

    messages: Sequence[Message]
    """All of them; replies of this session as they were sampled."""
    tools: Sequence[Tool] = ()
    """What the model was offered in the last call."""


@dataclass(frozen=True, kw_only=True)
class SessionTrace:
    """What became of a session."""

    id: str
    calls: tuple[TracedCall, ...]
    """In the order in which they were stored; parents come before what continues them."""
    rewards: Mapping[str, float]
    """The last reward given, by role; a role without one is left out."""
    counters: Mapping[str, int]
    """How often: ``ignored/<parameter>``, ``overruled/<parameter>``, ``branches``, ``retries``, ``cancelled``."""
    ending: Ending
    requests: int = 0
    """Requests for replies that came with its key, whatever became of them."""
    too_long: int = 0
    """Requests that were refused by their length in characters, before they were rendered."""
    calls_used_up: int = 0
    """Requests that were refused, as they would have exceeded `SessionSpec.max_calls`."""
    said: Said | None = None
    """The conversation of the last delivered call; None: none was delivered, or `SessionSpec.keeps_messages` is off."""
