"""Environments: an agent acts in them through text or JSON objects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rllm_core.contracts.plugin import ParamsT, Plugin
from rllm_core.errors import ConfigError

if TYPE_CHECKING:
    from rllm_core.data.messages import Message, Tool
    from rllm_core.data.types import Task

Split = Literal["train", "val"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The environment's response to one action."""

    observation: str | Sequence[Message] = ""
    """The agent's next observation. A plain string is a user message. Not used if `done`."""
    reward: float = 0.0
    """Reward of this step. A trajectory's reward is the sum over its steps."""
    reward_error: str = ""
    """Cause of a missing reward, if `reward` is NaN. The error ``missing-reward`` contains it."""
    done: bool = False
    correct: bool | None = None
    """True if the task is solved. Set it in the outcome that ends the episode. If None, the task counts as solved if
    the reward is greater than 0."""
    reward_components: Mapping[str, float] = field(default_factory=dict)
    """Values that estimators such as `gdpo` use instead of the reward, for example ``{"correct": 1.0, "number": 1.0}``.
    They are summed over the steps. Use the same names in all steps of an environment."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the finished episode, such as ``{"guesses": 3}``. They are averaged over episodes."""


class Environment(ABC):
    """The interface of environments. Each episode has its own instance, made with the environment's options.

    `reset`, `step` and `close` may be coroutine functions. Plain methods run in their own thread, unless the plugin
    sets ``blocking=False``. Set it only if the methods return quickly without waiting.
    """

    takes_objects: ClassVar[bool] = False
    """True if `step` accepts JSON objects in addition to text. Otherwise, agents whose actions are objects are
    rejected."""

    @classmethod
    def tasks(cls, split: Split, params: Any) -> Sequence[Task]:
        """Return all tasks of a split in a fixed order. Use `rllm_core.data.tasks.LazyTasks` if it is slow to make
        them. Do not define this method if all tasks come from datasets.

        Raises:
            ConfigError: `split` is train, which means that the run has no dataset.
        """
        if split == "val":
            return []
        raise ConfigError(
            "no-dataset",
            "This environment needs a dataset, and `data.train_dataset` is not set.",
            'Add --data FILE, or "data.train_dataset={name: jsonl, path: FILE}".',
        )

    @abstractmethod
    def reset(self, task: Mapping[str, Any]) -> str | Sequence[Message] | Awaitable[str | Sequence[Message]]:
        """Start a task, given as its `data`, and return the agent's first observation. A string is a user message."""

    @abstractmethod
    def step(self, action: Any) -> Outcome | Awaitable[Outcome]:
        """Apply the agent's action and return the outcome. The environment itself must respond to invalid actions.

        An action is text. If `takes_objects` is true, it may also be a JSON object.
        """

    def tools(self, task: Mapping[str, Any]) -> Sequence[Callable[..., Any] | tuple[Tool, Callable[..., Any]]]:
        """Return the tools that the model may call in the rollout of `task`. Called once, after `reset`.

        A tool is a typed function, plain or async, such as a method of this instance. It may also be a pair of the
        tool's schema and the function. The workflow runs the tools. `step` receives the first response without tool
        calls. Tools need a workflow that calls tools.
        """
        return ()

    def final_state(self) -> Any:
        """Return data for rewards after the episode has ended, as JSON data; see `Rollout.state`."""
        return None

    def close(self) -> Awaitable[None] | None:
        """Release the episode's resources. Called once, also after an error. After a timeout `step` may still be
        running."""
        return None


@dataclass(frozen=True, kw_only=True)
class EnvironmentPlugin(Plugin[ParamsT]):
    """A plugin spec that offers an environment. Users choose it with ``rllm train NAME`` or ``rllm.env.name``.

    Its options are ``rllm.env.env_args``.

    For example::

        from rllm_core.contracts import Environment, EnvironmentPlugin, Outcome, Params
        from rllm_core.plugins import hookimpl

        class EchoParams(Params):
            tasks: int = 100

        class Echo(Environment):
            def __init__(self, params):
                self.word = ""

            @classmethod
            def tasks(cls, split, params):
                from rllm_core.data.types import Task

                return [Task(id=f"{split}-{i}", data={"word": f"word{i}"}) for i in range(params.tasks)]

            def reset(self, task):
                self.word = task["word"]
                return f"Say {self.word}."

            def step(self, action):
                return Outcome(reward=float(action.strip() == self.word), done=True)

        @hookimpl
        def rllm_environments():
            yield EnvironmentPlugin(
                name="echo", summary="Repeat a word.", load_params=lambda: EchoParams, load=lambda: Echo, blocking=False
            )
    """

    kind: ClassVar[str] = "environment"

    load: Callable[[], Callable[[Any], Environment]]
    """Returns the `Environment` class, whose constructor takes the options."""
    blocking: bool = True
    """True if plain `reset` and `step` methods may wait, for example for a process, a network or a lock."""
    check_task: Callable[[Any, Mapping[str, Any]], None] | None = None
    """Takes the options and the data of a task. Raises ConfigError if the environment cannot run the task. Called with
    all tasks of a dataset by ``--dry-run``, by ``rllm config validate`` and before a run starts."""
    first_prompt: Callable[[Any, Mapping[str, Any]], str | Sequence[Message]] | None = None
    """Takes the options and the data of a task, and returns its first observation. Set it if this is cheap: the prompts
    of all tasks are then checked before a run starts."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Default config values for runs with this environment, such as ``{"rllm.workflow.name": "multi_turn_workflow"}``.
    Users' values take precedence."""
    recipes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Config values that are known to train a model on this environment, by ``"<backend>/<model>"``. They apply if both
    are chosen. They may include keys of that backend."""
    needs_keys: Mapping[str, str] = field(default_factory=dict)
    """Keys that a run with this environment must set, each with an example. For example, an environment without its own
    reward has ``{"rllm.reward": "[exact]"}``. A run in which such a key is empty stops before it starts and shows the
    line to add."""
    best_possible: Mapping[str, float] = field(default_factory=dict)
    """Highest possible mean of ``reward`` or of an episode metric. It is shown next to the run's values."""
