"""The tasks of each rollout batch: drawn by the run's sampler, which observes their results."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from operator import index
from typing import Any

import numpy as np

from rllm.planning.plan import RunPlan
from rllm.planning.sampling import make_sampler
from rllm.runs.checkpoint import Checkpoint
from rllm_core.contracts.sampler import Sampler, TaskResult
from rllm_core.data.tasks import task_ids
from rllm_core.data.types import Episode, Task, TerminationReason
from rllm_core.errors import CheckpointError, PluginError, failures_as
from rllm_core.pipeline.metrics import find_reward


@dataclass(frozen=True, eq=False)
class TaskSchedule:
    """The training tasks and the maximum number of tasks in a batch. The run's sampler chooses the tasks of a batch."""

    tasks: Sequence[Task]
    batch_size: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.tasks) // self.batch_size)

    def digest(self) -> str:
        """Return a digest of the tasks, their order and the batch size."""
        digest = hashlib.sha256(str(self.batch_size).encode())
        for task_id in task_ids(self.tasks):
            digest.update(f"\n{task_id}".encode())
        return digest.hexdigest()

    def epoch_of(self, index: int) -> int:
        """Return the epoch of a batch. Both are counted from 0."""
        return index // self.steps_per_epoch


@dataclass(frozen=True)
class Draw:
    """The tasks of a rollout batch whose results the sampler has not observed yet."""

    positions: list[int]
    metrics: dict[str, float]
    """The sampler's metrics after the draw, as logged."""


class TaskDraws:
    """Draws the tasks of rollout batches in order, and passes their results to the sampler in step order."""

    def __init__(self, plan: RunPlan, tasks: Sequence[Task]) -> None:
        self._plan = plan
        self._tasks = tasks
        self._name = plan.sampler.qualified_name
        self._pending: dict[int, Draw] = {}
        """Draws by number of the rollout batch."""

    @cached_property
    def _sampler(self) -> Sampler:
        return make_sampler(self._plan, self._tasks)

    def draw(self, batch: int) -> tuple[list[Task], dict[str, float]]:
        """Return the tasks of a rollout batch, and the sampler's metrics. A batch that was drawn before an interruption
        keeps its tasks.

        Raises:
            PluginError: the sampler failed, or its result is not usable.
        """
        drawn = self._pending.get(batch)
        if drawn is None:
            with failures_as(PluginError, f"Sampler {self._name}"):
                positions = self._check_positions(self._sampler.draw(batch))
                metrics = {f"sampler/{name}": float(value) for name, value in self._sampler.metrics().items()}
            drawn = self._pending[batch] = Draw(positions, metrics)
        return [self._tasks[position] for position in drawn.positions], dict(drawn.metrics)

    def observe(self, batches: Iterable[int], episodes: Iterable[Sequence[Episode]]) -> None:
        """Pass the results of a training step to the sampler.

        Args:
            batches: numbers of the step's rollout batches, in order.
            episodes: the episodes of each of these batches.
        """
        ids, results = task_ids(self._tasks), list[TaskResult]()
        for batch, batch_episodes in zip(batches, episodes, strict=True):
            positions = self._pending.pop(batch).positions
            results += _results({ids[position]: position for position in positions}, batch_episodes)
        with failures_as(PluginError, f"Sampler {self._name}"):
            self._sampler.observe(results)

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's name and state, and the draws whose results it has not observed."""
        pending = {str(batch): asdict(drawn) for batch, drawn in self._pending.items()}
        return {"name": self._name, "state": self._sampler.state_dict(), "pending": pending}

    def check_same(self, checkpoint: Checkpoint) -> None:
        """Raise CheckpointError if the checkpoint was written by a run with a different sampler."""
        was = checkpoint.state["sampler"]["name"]
        if was != self._name:
            raise CheckpointError(
                "run-changed",
                f"{checkpoint.directory} was made with rllm.sampler={was}, this run has {self._name}.",
                f"Resume with --sampler {was}.",
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of `state_dict`."""
        with failures_as(PluginError, f"Sampler {self._name}"):
            self._sampler.load_state_dict(state["state"])
        self._pending = {int(batch): Draw(**drawn) for batch, drawn in state["pending"].items()}

    def _check_positions(self, drawn: Sequence[int]) -> list[int]:
        try:
            positions = [index(position) for position in drawn]
        except TypeError:
            raise self._unusable(f"returned {drawn!r:.80}", "Return a list of positions.") from None
        size = self._plan.max_batch_tasks(len(self._tasks))
        if not 0 < len(positions) <= size:
            raise self._unusable(f"returned {len(positions)} tasks", f"Return 1 to {size}: see `batch_size`.")
        unknown = [position for position in positions if not 0 <= position < len(self._tasks)]
        if unknown:
            raise self._unusable(
                f"returned position {unknown[0]}", f"Return positions from 0 to {len(self._tasks) - 1}."
            )
        if len(set(positions)) < len(positions):
            twice = next(position for position in positions if positions.count(position) > 1)
            raise self._unusable(f"returned task {twice} twice", "Return each position only once per batch.")
        return positions

    def _unusable(self, what: str, hint: str) -> PluginError:
        return PluginError("bad-sampler-result", f"Sampler {self._name} {what}.", hint)


def _results(positions: dict[str, int], episodes: Iterable[Episode]) -> Iterator[TaskResult]:
    """Yield the results of the drawn tasks, in the order of `positions`, which has task ids as its keys."""
    by_task: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        if episode.termination_reason is not TerminationReason.ERROR:
            by_task[episode.task_id].append(episode)
    for task_id, position in positions.items():
        if rollouts := by_task.get(task_id):
            rewards = [_reward(episode) for episode in rollouts]
            yield TaskResult(
                position=position,
                solved=[episode.is_correct for episode in rollouts],
                rewards=[reward for reward in rewards if not math.isnan(reward)],
            )


def _reward(episode: Episode) -> float:
    """Return the mean reward of an episode's trajectories. NaN if none has a reward."""
    rewards = [reward for each in episode.trajectories if (reward := find_reward(each)) is not None]
    return float(np.mean(rewards)) if rewards else math.nan
