"""Environments: the world an agent acts in, as text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from rllm_core.data.messages import Message, Tool
    from rllm_core.data.types import Task

Split = Literal["train", "val"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The environment's answer to one action."""

    observation: str | Sequence[Message] = ""
    """What the agent sees next; a plain string is a user message. Unused once `done`."""
    reward: float = 0.0
    """Reward of this step; a trajectory's reward is the sum over its steps."""
    done: bool = False
    correct: bool | None = None
    """Whether the task is solved, said in the outcome that ends the episode. None: unknown, so reward > 0 decides."""
    reward_components: Mapping[str, float] = field(default_factory=dict)
    """What estimators such as `gdpo` look at instead of the reward, such as ``{"correct": 1.0, "number": 1.0}``; summed
    over the steps. Each step of an environment should name the same ones."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Figures of the finished episode, such as ``{"guesses": 3}``; averaged over episodes."""


class Environment(ABC):
    """One instance plays one episode; it is made anew for each with the environment's options.

    `reset` and `step` may be coroutines. Plain methods run in a thread of their own unless the plugin says
    ``blocking=False``, which is right for those that only compute and return at once.
    """

    takes_objects: ClassVar[bool] = False
    """Whether `step` takes JSON objects besides text; an agent that acts by one is refused otherwise."""

    @classmethod
    @abstractmethod
    def tasks(cls, split: Split, params: Any) -> Sequence[Task]:
        """All tasks of a split, in a fixed order; `rllm_core.data.tasks.LazyTasks` where making them takes long."""

    @abstractmethod
    def reset(self, task: Mapping[str, Any]) -> str | Sequence[Message] | Awaitable[str | Sequence[Message]]:
        """Start on a task (its `data`) and return what the agent sees first; a string is a user message."""

    @abstractmethod
    def step(self, action: Any) -> Outcome | Awaitable[Outcome]:
        """Take the agent's action, return what follows. One that makes no sense is the environment's to answer.

        An action is text; where `takes_objects` is set, a JSON object as well.
        """

    def tools(self, task: Mapping[str, Any]) -> Sequence[Callable[..., Any] | tuple[Tool, Callable[..., Any]]]:
        """Tools that the model may call in the attempt at `task`. Asked once, after `reset`.

        A typed function, such as a method of this instance, plain or async; or the tool's schema with the function. The
        workflow runs them: `step` gets the first reply without calls. Needs a workflow that calls tools.
        """
        return ()

    def final_state(self) -> Any:
        """What rewards may look at once the episode has ended, as JSON data; see `Rollout.state`."""
        return None

    def close(self) -> None:  # noqa: B027  (nothing to release is the common case)
        """Release what the episode held. Called once, also after an error; after a timeout `step` may still hang."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentPlugin(Plugin[ParamsT]):
    """Offers an environment. Chosen by ``rllm train NAME`` or ``rllm.env.name``.

    Its options are ``rllm.env.env_args``.
    """

    kind: ClassVar[str] = "environment"

    load: Callable[[], Callable[[Any], Environment]]
    """Returns the `Environment` class, whose constructor takes the options."""
    blocking: bool = True
    """Whether plain `reset` and `step` may wait for something (a process, a network, a lock)."""
    check_task: Callable[[Any, Mapping[str, Any]], None] | None = None
    """Takes the options and the data of a task, and raises ConfigError for one that it cannot play. Called with the
    first tasks by ``--dry-run``, ``rllm config validate`` and before a run starts."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Config values that suit this environment, such as ``{"rllm.workflow.name": "multi_turn_workflow"}``.
    Users' own values win."""
    recipes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Config values known to train a model on it, by ``"<backend>/<model>"``, applied when both are chosen. Keys of
    that backend may be among them."""
    needs_keys: Mapping[str, str] = field(default_factory=dict)
    """Keys that a run with it must set, each with an example: ``{"rllm.reward": "[exact]"}`` of one that pays nothing
    itself. A run where such a key is empty stops before it starts and shows the line to add."""
    best_possible: Mapping[str, float] = field(default_factory=dict)
    """Best reachable mean of ``reward`` or of an episode metric, shown beside what was reached."""
