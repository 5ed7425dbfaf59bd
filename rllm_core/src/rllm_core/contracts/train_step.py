"""TrainStep: everything that flows through the stages of one training step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rllm_core.contracts.backend import UpdatePlan, UpdateResult
    from rllm_core.contracts.renderer import Renderer
    from rllm_core.data.batch import TokenBatch
    from rllm_core.data.types import Episode, Task, Trajectory, TrajectoryGroup


@dataclass(frozen=True, kw_only=True, eq=False)
class Decision:
    """Why trajectories are not trained on in this step. Of several decisions on a trajectory the last one holds."""

    outcome: Literal["waiting", "dropped", "masked"]
    """``masked``: it left before there were groups; ``waiting``: it may be trained on in a later step."""
    rule: str
    """Stage and reason, such as ``reject/all_solved``."""
    trajectories: tuple[Trajectory, ...]
    group: TrajectoryGroup | None = None
    """Their group; None: there is none yet."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """What the rule looked at, by name."""


@dataclass(kw_only=True)
class TrainStep:
    """One step of the training loop. Stages fill it; observers and trackers read it."""

    global_step: int
    """Counted from 0 over the whole run."""
    epoch: int
    total_steps: int
    tasks: list[Task]
    """What is being played: the tasks of the newest round."""
    task_batch: int = 0
    """Which batch of tasks of the run that is, from 0; rollouts are seeded by it."""
    is_training: bool = True
    renderer: Renderer | None = None
    """Of the model that is trained; None in tests that need no model."""
    weight_version: int = 0
    """Updates made so far; grows by one when this step updates the weights. While the tasks are played ahead: when that
    began, which is the version that samples where weights are pinned."""
    generated: list[Episode] = field(default_factory=list)
    """All episodes of the step, as they were played, round after round."""
    later_batches: list[int] = field(default_factory=list)
    """Where each round but the first begins in `generated`; filled by `take_rollout_batch`."""
    episodes: list[Episode] = field(default_factory=list)
    """Those of the newest round that have not been masked."""
    offered_groups: list[TrajectoryGroup] = field(default_factory=list)
    """All groups of the step with their rewards checked, round after round, whatever becomes of them."""
    trajectory_groups: list[TrajectoryGroup] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    """Why trajectories are not trained on in this step, as its stages say by `decide`."""
    given_rewards: dict[int, float | None] = field(default_factory=dict)
    """By ``id`` of a trajectory, the reward that it came with, where a stage gave it another."""
    batch: TokenBatch | None = None
    estimators: tuple[str, ...] = ()
    """(n_group of the batch,) what estimated the advantages, by name; ``precomputed``: they came with the group."""
    baselines: NDArray[np.float64] | None = None
    """(n_traj of the batch,) what rewards were compared with, NaN where the estimator does not say."""
    update_plan: UpdatePlan | None = None
    """What the backend was asked to make of the batch; None: no update was made."""
    update_result: UpdateResult | None = None
    """What it did."""
    metrics: dict[str, float] = field(default_factory=dict)
    counted: set[str] = field(default_factory=set)
    """Names of the metrics that count over all rounds of the step; filled by `count`."""
    timing_dict: dict[str, float] = field(default_factory=dict)
    """Seconds per stage."""
    generated_ahead: float = 0.0
    """Seconds of `timing_dict` in which training did something else: the tasks were played meanwhile."""
    asks_for_more: bool = False
    """Whether another round is played before the stages go on; set by `generate_more`."""
    skip_reason: str = ""
    """Why there is nothing to train on; set by `skip`."""
    extras: dict[str, Any] = field(default_factory=dict)
    """What stages of other packages leave for each other, under names of their own."""

    def skip(self, reason: str) -> None:
        """Nothing is left to train on: only stages that always run follow. The first reason is a metric of its own."""
        if not self.skip_reason:
            self.skip_reason = reason
            self.metrics[f"batch/skipped_{reason}"] = 1.0

    def go_on(self) -> None:
        """There is something to train on after all, such as groups kept since earlier steps."""
        self.metrics.pop(f"batch/skipped_{self.skip_reason}", None)
        self.skip_reason = ""

    def generate_more(self) -> None:
        """Ask for another round: when the stage has ended, the stages run again on the next tasks."""
        self.asks_for_more = True

    def take_rollout_batch(self, played: TrainStep) -> None:
        """Take up another round: from here on the step is about its tasks, episodes and groups.

        What counts over all rounds is added up; of other metrics and extras the newest round's hold.

        Args:
            played: the step in which that round was played.
        """
        self.go_on()
        self.asks_for_more = played.asks_for_more
        self.tasks, self.task_batch = played.tasks, played.task_batch
        self.later_batches.append(len(self.generated))
        self.generated += played.generated
        self.episodes = played.episodes
        self.offered_groups += played.offered_groups
        self.trajectory_groups = played.trajectory_groups
        self.decisions += played.decisions
        self.given_rewards |= played.given_rewards
        self.extras |= played.extras
        for name, value in played.metrics.items():
            if name in played.counted:
                self.count(name, value)
            else:
                self.metrics[name] = value
        for stage, seconds in played.timing_dict.items():
            self.timing_dict[stage] = self.timing_dict.get(stage, 0.0) + seconds
        self.generated_ahead += played.generated_ahead
        self.skip_reason = played.skip_reason

    @property
    def rounds(self) -> int:
        """Batches of tasks played in this step so far; more than 1 when rejection asked for more."""
        return 1 + len(self.later_batches)

    @property
    def generated_by_batch(self) -> list[list[Episode]]:
        """`generated`, one list per round. A task may come round again; its attempts are not compared across rounds."""
        return [self.generated[a:b] for a, b in pairwise((0, *self.later_batches, len(self.generated)))]

    def decide(
        self,
        outcome: Literal["waiting", "dropped", "masked"],
        rule: str,
        trajectories: Iterable[Trajectory],
        group: TrajectoryGroup | None = None,
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        """Say why trajectories are not trained on in this step; see `Decision`."""
        decided = tuple(trajectories)
        if decided:
            self.decisions.append(
                Decision(outcome=outcome, rule=rule, trajectories=decided, group=group, numbers=numbers or {})
            )

    def count(self, metric: str, number: float) -> None:
        """Add to a metric that counts over all rounds of the step."""
        self.counted.add(metric)
        self.metrics[metric] = self.metrics.get(metric, 0.0) + number

    @property
    def filled_batch(self) -> TokenBatch:
        """The batch, for stages after `build_batch`."""
        if self.batch is None:
            raise RuntimeError("no stage has built a batch yet")
        return self.batch
