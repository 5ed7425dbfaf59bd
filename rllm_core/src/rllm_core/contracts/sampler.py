"""Samplers: they decide which tasks the next rollout batch contains, such as a curriculum."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from rllm_core.data.types import Task


@dataclass(frozen=True, kw_only=True)
class SamplerSetup:
    """The run's training tasks."""

    tasks: Sequence[Task]
    """All training tasks in a fixed order. They may be `rllm_core.data.tasks.LazyTasks`, so read only those you need.
    """
    batch_size: int
    """Maximum number of tasks in a batch. It is never more than the number of tasks."""
    seed: int
    """The run's seed. Derive the seed of each draw with `rllm_core.seeding.derive_seed`."""


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """The rollouts of one task in one rollout batch."""

    position: int
    """Position of the task in `SamplerSetup.tasks`, from 0."""
    solved: Sequence[bool]
    """One entry per rollout: True if it is correct. Never empty. Rollouts that ended with an error are not included."""
    rewards: Sequence[float]
    """The mean reward of each rollout's trajectories. Rollouts without a reward are not included."""

    @property
    def pass_rate(self) -> float:
        """Share of solved rollouts, from 0 to 1."""
        return sum(self.solved) / len(self.solved)


class Sampler(ABC):
    """A rule that draws tasks. It is a pure function of its options, the setup, and the results in step order.

    rllm calls `draw` once per rollout batch and `observe` once per training step. If rollouts are generated ahead,
    later batches are drawn before earlier results are observed. The order of these calls depends only on the config.
    Everything that a sampler stores between calls must be in `state_dict`, so that a resumed run is identical.
    """

    @abstractmethod
    def draw(self, batch: int) -> Sequence[int]:
        """Return the positions of the tasks in rollout batch number `batch`, which is counted from 0 over the run.

        Return at least one position and at most `SamplerSetup.batch_size`, each only once.
        """

    def observe(self, results: Sequence[TaskResult]) -> None:  # noqa: B027  (a sampler without feedback needs none)
        """Receive the results of a training step's tasks, in the order in which they were drawn."""

    def metrics(self) -> Mapping[str, float]:
        """Return metrics about the latest draw. rllm logs each as ``sampler/NAME`` with that batch's training step."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the data that the sampler stores between calls, as JSON."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027  (as for `observe`)
        """Restore a state of `state_dict`. Called before the first draw of a resumed run."""


@dataclass(frozen=True, kw_only=True)
class SamplerPlugin(Plugin[ParamsT]):
    """A plugin spec that offers a sampler. Users choose it with ``--sampler`` or ``rllm.sampler``.

    `load` returns a factory that takes the options and a `SamplerSetup` and makes the sampler of one run. It raises
    ConfigError if it cannot sample from these tasks.

    A sampler returns positions of tasks. It may observe the results of earlier tasks::

        from rllm_core.contracts import Sampler, SamplerPlugin
        from rllm_core.plugins import hookimpl

        class HardestFirst(Sampler):
            def __init__(self, params, setup):
                self.size = setup.batch_size
                self.rates = [0.0] * len(setup.tasks)

            def draw(self, batch):
                return sorted(range(len(self.rates)), key=lambda position: self.rates[position])[: self.size]

            def observe(self, results):
                for result in results:
                    self.rates[result.position] = result.pass_rate

            def state_dict(self):
                return {"rates": self.rates}

            def load_state_dict(self, state):
                self.rates = state["rates"]

        @hookimpl
        def rllm_samplers():
            yield SamplerPlugin(
                name="hardest_first",
                summary="The tasks with the lowest pass rates.",
                load=lambda: HardestFirst,
            )
    """

    kind: ClassVar[str] = "sampler"

    load: Callable[[], Callable[[Any, SamplerSetup], Sampler]]
