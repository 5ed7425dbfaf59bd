"""Sessions of rollouts: the data with which a trainer opens a session, and the trace that it gets back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rllm_core.data.messages import Message, Tool
from rllm_gateway.calls.rows import CallRow
from rllm_gateway.client import DEFAULT_ROLE

Ending = Literal["closed", "failed"]
"""``failed``: a call could not be stored, so the trace is incomplete."""
TASK, TASK_ID, LABEL, TEMPERATURE, TOKENIZER = "task", "task_id", "label", "temperature", "tokenizer"
BATCH = "task_batch"
"""Keys of a stored session's metadata."""
VALIDATION = "val"
"""The `LABEL` of validation sessions, which are not used for training."""


@dataclass(frozen=True, kw_only=True)
class SessionSpec:
    """The data with which a trainer opens a session. All of it is JSON data."""

    id: str
    """Uid of the rollout and its retry. It is part of URLs: letters, digits, ``-``, ``_``, ``.``, ``~`` and ``:``."""
    run: str
    """Name of the run."""
    rollout: str
    """Uid of the rollout."""
    retry: int = 0
    """Number of the rollout's try, from 0."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of the task."""
    task_id: str = ""
    """Name of the task. Sessions with the same name belong to the same task, even if their metadata differ. Empty: the
    task has no name."""
    label: Literal["train", "val"] = "train"
    task_batch: int | None = None
    """See `WorkflowContext.task_batch`. None: the session belongs to no batch of a run."""
    max_tokens: int
    """Maximum number of tokens of one response."""
    max_prompt_length: int | None = None
    """Maximum number of tokens of a prompt. A prompt with far more characters is rejected before it is rendered. None:
    no limit."""
    max_calls: int = 1000
    """Maximum number of sampled responses. Later calls are rejected."""
    temperature: float = 1.0
    """Sampling temperature. It is stored, because the log-probs depend on it."""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the renderer. Conversations with different options share no prefix."""
    accumulate_reasoning: bool = False
    """Value of ``rllm.accumulate_reasoning``."""
    group_key: str | None = None
    """Key of a request's ``metadata``. Calls with different values form separate trajectories
    (``rllm.sdk.processing.groupby_key``)."""
    name_key: str | None = None
    """Key of a request's ``metadata`` with the trajectory's name (``rllm.sdk.processing.traj_name_key``)."""
    unsupported: Literal["refuse", "ignore"] = "refuse"
    """Treatment of unsupported request parameters. ``refuse``: HTTP 400. ``ignore``: counted as ignored."""
    keeps_messages: bool = False
    """True if the trace contains the last conversation, which rewards read."""


@dataclass(frozen=True, kw_only=True)
class OpenedSession:
    """URL and key with which an agent uses its session."""

    id: str
    key: str
    """API key for the agent's clients. Only its hash is stored."""
    url: str
    """URL of the session, such as ``http://127.0.0.1:4000/s/<id>``."""

    def openai_url(self, role: str = DEFAULT_ROLE) -> str:
        """Return the ``OPENAI_BASE_URL`` of the agent in this role."""
        return f"{self.url}/{role}/v1"

    def anthropic_url(self, role: str = DEFAULT_ROLE) -> str:
        """Return the ``ANTHROPIC_BASE_URL`` of the agent in this role."""
        return f"{self.url}/{role}"


@dataclass(frozen=True, kw_only=True)
class TracedCall:
    """One response of the model. The trainer has its tokens, under the same id."""

    id: str
    parent: str | None
    """Id of the call whose prompt and response are the start of this prompt, token for token. None: no such call."""
    role: str
    name: str | None
    """The request's metadata value under `SessionSpec.name_key`. None: the request has none."""
    group: str | None
    """The request's metadata value under `SessionSpec.group_key`. None: the request has none."""
    delivered: bool
    """True if the client received the answer. Otherwise the call is not used for training."""


def traced_call(row: CallRow, delivered: bool) -> TracedCall:
    """Return the trace entry of a stored call."""
    return TracedCall(id=row.id, parent=row.parent, role=row.role, name=row.name, group=row.group, delivered=delivered)


@dataclass(frozen=True, kw_only=True)
class Said:
    """A conversation that ends with a response of the model."""

    messages: Sequence[Message]
    """All messages. Responses of this session are the sampled ones."""
    tools: Sequence[Tool] = ()
    """Tools of the last call."""


@dataclass(frozen=True, kw_only=True)
class SessionTrace:
    """The result of a session: its calls, rewards and counters."""

    id: str
    calls: tuple[TracedCall, ...]
    """Calls in the order in which they were stored. A parent comes before the calls that continue it."""
    rewards: Mapping[str, float]
    """Role -> last reward. Roles without a reward are missing."""
    counters: Mapping[str, int]
    """Event -> count: ``ignored/<parameter>``, ``overruled/<parameter>``, ``branches``, ``retries``, ``cancelled``."""
    ending: Ending
    requests: int = 0
    """Number of requests for a response with the session's key, including rejected ones."""
    too_long: int = 0
    """Number of requests that were rejected before they were rendered, because they have too many characters."""
    calls_used_up: int = 0
    """Number of requests that were rejected, because they would have exceeded `SessionSpec.max_calls`."""
    said: Said | None = None
    """Conversation of the last delivered call. None if no call was delivered or `SessionSpec.keeps_messages` is off."""
