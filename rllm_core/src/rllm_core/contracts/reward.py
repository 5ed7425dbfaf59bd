"""Rewards: functions that score a finished rollout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from rllm_core.data.messages import Message, Response


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """The input of a reward: one finished rollout of a task.

    In a test of a reward, make `response` with ``rllm_core.data.messages.Response(text=…, content=…)``.
    """

    data: Mapping[str, Any]
    """The task's data, such as ``{"question": …, "answer": …}``."""
    messages: Sequence[Message]
    """The whole conversation, including the last response."""
    response: Response
    """The last response, parsed. Its `finish_reason` shows if it was cut off."""
    response_tokens: int
    """Number of tokens that the model sampled in all turns."""
    state: Any = None
    """The environment's final state; see `Environment.final_state`."""
    response_ids: Sequence[int] = ()
    """Tokens of the last response. Empty if the rollout was scored without tokens."""
    task_batch: int | None = None
    """Number of the rollout batch, from 0. None if the rollout belongs to no batch, for example in validation."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """The result of a reward for one rollout."""

    value: float | None
    """The reward, a finite number. None if it is missing. `feedback` then contains the reason, and
    `rllm.algorithm.on_missing_reward` decides how to continue."""
    correct: bool | None = None
    """True if the task is solved. None if the reward cannot decide."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Reward parts that estimators such as `gdpo` use, for example ``{"format": 1.0}``."""
    extracted: str | None = None
    """The text that was scored as the answer. Episode logs store it as ``info.extracted`` of the trajectory."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the rollout. They are averaged over episodes."""
    feedback: str = ""
    """A one-line explanation of the value, for display."""
    applies: bool = True
    """False if the reward does not apply to the task. `value` is then None, and the other rewards are summed. If no
    reward applies, the reward is missing."""


class Reward(Protocol):
    """Computes one reward. It may be a coroutine function.

    Return a `Score`, a number, a mapping with the fields of `Score`, or None if there is no reward. If it raises an
    exception, the reward is missing.
    """

    def __call__(
        self, rollout: Rollout, /
    ) -> Score | float | Mapping[str, Any] | Awaitable[Score | float | Mapping[str, Any] | None] | None: ...


class GroupReward(Protocol):
    """Computes the rewards of all rollouts of a task, in one call. It may be a coroutine function.

    Return one result for each rollout, in the same order. A result has the forms of a `Reward`.
    """

    def __call__(self, rollouts: Sequence[Rollout], /) -> Sequence[Any] | Awaitable[Sequence[Any]]: ...


RewardScope = Literal["rollout", "group"]


@dataclass(frozen=True, kw_only=True)
class RewardPlugin(Plugin[ParamsT]):
    """A plugin spec that offers a reward. Users choose it with ``rllm.reward``, a list. An entry may have a ``weight``.

    Estimators that standardize each part of a reward, such as `gdpo`, have their own option for weights. They use only
    the sign of the weights in ``rllm.reward``, so weights with a size other than 1 are rejected with them.

    For example::

        from rllm_core.contracts import Params, RewardPlugin, Score
        from rllm_core.plugins import hookimpl

        class ContainsParams(Params):
            ignore_case: bool = True

        class Contains:
            def __init__(self, params):
                self.ignore_case = params.ignore_case

            def __call__(self, rollout):
                answer, said = str(rollout.data["answer"]), rollout.response.content
                if self.ignore_case:
                    answer, said = answer.lower(), said.lower()
                return Score(value=float(answer in said), correct=answer in said)

        @hookimpl
        def rllm_rewards():
            yield RewardPlugin(
                name="contains",
                summary="1 if the response contains the answer.",
                load_params=lambda: ContainsParams,
                load=lambda: Contains,
                needs=frozenset({"answer"}),
                blocking=False,
            )
    """

    kind: ClassVar[str] = "reward"
    _reserved: ClassVar[frozenset[str]] = frozenset({"weight"})

    load: Callable[[], Callable[[Any], Reward | GroupReward]]
    """Returns a factory that takes the options and makes the reward for one run."""
    scope: RewardScope | Callable[[Any], RewardScope] = "rollout"
    """``rollout`` for a `Reward`. ``group`` for a `GroupReward`, which compares the rollouts of a task. A function
    takes the options and returns the scope."""
    needs: frozenset[str] = frozenset()
    """Keys of a task's data that the reward reads, such as ``answer``. A rollout of a task without them has no reward.
    """
    check_task: Callable[[Any, Mapping[str, Any]], None] | None = None
    """Takes the options and the data of a task. Raises ConfigError if the reward cannot score the task. Called with all
    tasks of a dataset by ``--dry-run``, by ``rllm config validate`` and before a run starts."""
    timeout: float = 60.0
    """Time limit in seconds for one call. If it is exceeded, the reward is missing."""
    blocking: bool = True
    """True if a plain function may wait, for example for a process or a network. It then runs in its own thread."""
