"""`mixed`: several environments in one run."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pydantic import Field

from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.environment import Environment, EnvironmentPlugin, Outcome, Split
from rllm_core.contracts.params import Params
from rllm_core.data.messages import Message
from rllm_core.data.tasks import LazyTasks, task_ids
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry


class MixedEnvironmentParams(Params):
    environments: dict[str, float | dict[str, Any]] = Field(min_length=1)
    """Environments by name. Each value is the environment's ratio in a batch, or its options with the ratio, such as
    {guess: 3, sum: {ratio: 1, largest: 20}}. For a name of your choice, add the option `name`."""


KEY = "rllm.env.env_args.environments"
ENVIRONMENT, RATIO = "environment", "ratio"
"""Columns that `mixed` adds to the data of a task."""


@dataclass(frozen=True)
class Member:
    """One environment of the run, with its options."""

    chosen: PluginChoice[EnvironmentPlugin[Any]]
    ratio: float

    def make(self) -> Environment:
        """Return a new environment for one rollout."""
        made: Environment = self.chosen.registered.load()(self.chosen.params)
        return made


class MixedEnvironment(Environment):
    """Tasks of several environments. Each rollout runs in its task's environment.

    Task data is the environment's own, with the columns ``environment`` and ``ratio``. The data source is the
    environment's name in the options, so that metrics of validation are reported for each environment.
    """

    def __init__(self, params: MixedEnvironmentParams) -> None:
        self._params = params
        self._inner: Environment | None = None

    @classmethod
    def tasks(cls, split: Split, params: MixedEnvironmentParams) -> Sequence[Task]:
        """Return the tasks of all environments, one environment after the other.

        Raises:
            ConfigError: an environment or its options are wrong.
        """
        _members.cache_clear()  # a notebook may have registered an environment again
        ids: list[str] = []
        sources: list[tuple[str, Member, Sequence[Task], int]] = []
        for label, member in members(params).items():
            own = member.chosen.registered.load().tasks(split, member.chosen.params)
            sources += [(label, member, own, index) for index in range(len(own))]
            ids += [f"{label}/{task_id}" for task_id in task_ids(own)]

        def make(index: int) -> Task:
            label, member, own, place = sources[index]
            task = own[place]
            data = {**task.data, ENVIRONMENT: label, RATIO: member.ratio}
            return replace(task, id=ids[index], data=data, data_source=label)

        tasks = LazyTasks(ids, make)
        return tasks if any(isinstance(each, LazyTasks) for _, _, each, _ in sources) else list(tasks)

    def reset(self, task: Mapping[str, Any]) -> str | Sequence[Message] | Awaitable[str | Sequence[Message]]:
        """Start a task in its environment."""
        self._inner = members(self._params)[task[ENVIRONMENT]].make()
        return self._inner.reset(own_data(task))

    def step(self, action: Any) -> Outcome | Awaitable[Outcome]:
        """Apply the action in the task's environment."""
        assert self._inner is not None
        return self._inner.step(action)

    def final_state(self) -> Any:
        """Return the state of the task's environment."""
        return None if self._inner is None else self._inner.final_state()

    def close(self) -> None:
        """Close the task's environment."""
        if self._inner is not None:
            self._inner.close()


def own_data(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's data without the columns of `mixed`."""
    return {name: value for name, value in task.items() if name not in (ENVIRONMENT, RATIO)}


def members(params: MixedEnvironmentParams) -> dict[str, Member]:
    """Return the environments by their names in the options.

    Raises:
        ConfigError: an environment does not exist, its options are wrong, or it cannot be mixed.
    """
    return _members(params.model_dump_json())


@lru_cache(8)
def _members(json: str) -> dict[str, Member]:
    registry = Registry.load()
    found = {}
    for label, entry in MixedEnvironmentParams.model_validate_json(json).environments.items():
        options = {RATIO: entry} if isinstance(entry, int | float) else dict(entry)
        ratio = options.pop(RATIO, 1.0)
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or ratio <= 0:
            raise ConfigError("wrong-value", f"{KEY}.{label}.ratio is {ratio!r}.", "Give a number above 0, such as 2.")
        chosen = choose(registry, "environment", {"name": label, **options}, f"{KEY}.{label}")
        implementation = chosen.registered.load()
        if (
            implementation is MixedEnvironment
            or getattr(implementation, "tools", Environment.tools) is not Environment.tools
        ):
            what = "is `mixed` itself" if implementation is MixedEnvironment else "has tools"
            raise ConfigError(
                "wrong-value",
                f"{KEY}.{label} {what}, which cannot be mixed.",
                f"Remove it from {KEY}, or choose it with rllm.env.name.",
            )
        found[label] = Member(chosen, float(ratio))
    return found


def check(params: MixedEnvironmentParams) -> None:
    """Run the checks of all environments, which raise ConfigError."""
    for member in members(params).values():
        if member.chosen.plugin.check is not None:
            member.chosen.plugin.check(member.chosen.params)


def read_sources(params: MixedEnvironmentParams) -> dict[str, str]:
    """Return the sources of all environments."""
    return {
        f"{label}: {name}": text
        for label, member in members(params).items()
        if member.chosen.plugin.sources is not None
        for name, text in member.chosen.plugin.sources(member.chosen.params).items()
    }


def check_task(params: MixedEnvironmentParams, task: Mapping[str, Any]) -> None:
    """Run the check of the task's environment. Raises ConfigError for tasks of a dataset."""
    member = members(params).get(task.get(ENVIRONMENT, ""))
    if member is None:
        raise ConfigError(
            "tasks-not-for-environment",
            "A task has no environment of `mixed`.",
            "Remove the dataset, because each environment has its own tasks.",
        )
    if member.chosen.plugin.check_task is not None:
        member.chosen.plugin.check_task(member.chosen.params, own_data(task))
