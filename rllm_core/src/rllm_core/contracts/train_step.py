"""The data of one training step, which flows through all stages."""

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
    """The reason why trajectories are not trained on in this step. If a trajectory has several decisions, the last one
    applies."""

    outcome: Literal["waiting", "dropped", "masked"]
    """``masked``: removed before groups were formed. ``waiting``: it may be trained on in a later step."""
    rule: str
    """Stage and reason, such as ``reject/all_solved``."""
    trajectories: tuple[Trajectory, ...]
    group: TrajectoryGroup | None = None
    """The group of the trajectories. None if groups were not formed yet."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The values on which the decision is based, by name."""


@dataclass(kw_only=True)
class TrainStep:
    """One step of the training loop. Stages fill it. Observers and trackers read it."""

    global_step: int
    """Number of the step in the whole run, from 0."""
    epoch: int
    total_steps: int
    tasks: list[Task]
    """The tasks of the latest rollout batch."""
    task_batch: int = 0
    """Number of this task batch in the run, from 0. It seeds the rollouts."""
    is_training: bool = True
    renderer: Renderer | None = None
    """The trained model's renderer. None in tests without a model."""
    weight_version: int = 0
    """Number of updates so far. It increases by one when this step updates the weights. While a batch is generated
    ahead, it is the number of updates when generation started. Fixed-version weights sample with this version."""
    generated: list[Episode] = field(default_factory=list)
    """All episodes of the step in the order of their rollout batches."""
    later_batches: list[int] = field(default_factory=list)
    """Index in `generated` at which each rollout batch after the first begins. Filled by `take_rollout_batch`."""
    episodes: list[Episode] = field(default_factory=list)
    """Episodes of the latest rollout batch, without masked episodes."""
    offered_groups: list[TrajectoryGroup] = field(default_factory=list)
    """All groups of the step whose rewards were checked, in the order of their rollout batches. Later stages do not
    remove groups from it."""
    trajectory_groups: list[TrajectoryGroup] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    """The reasons why trajectories are not trained on in this step. Stages add them with `decide`."""
    given_rewards: dict[int, float | None] = field(default_factory=dict)
    """Original rewards of trajectories whose reward a stage replaced, by ``id`` of the trajectory."""
    batch: TokenBatch | None = None
    estimators: tuple[str, ...] = ()
    """(n_group of the batch,) names of the estimators that computed the advantages. ``precomputed`` means that the
    group already had advantages."""
    baselines: NDArray[np.float64] | None = None
    """(n_traj of the batch,) the baselines that rewards were compared with. NaN if the estimator does not report them.
    """
    update_plan: UpdatePlan | None = None
    """The update plan that the backend received for the batch. None if no update was made."""
    update_result: UpdateResult | None = None
    """The backend's result of the update."""
    metrics: dict[str, float] = field(default_factory=dict)
    counted: set[str] = field(default_factory=set)
    """Names of the metrics that are summed over all rollout batches of the step. Filled by `count`."""
    timing_dict: dict[str, float] = field(default_factory=dict)
    """Seconds per stage."""
    generated_ahead: float = 0.0
    """Seconds of `timing_dict` that ran concurrently with training, because the batch was generated ahead."""
    asks_for_more: bool = False
    """True if the runner must generate another rollout batch before the next stage. Set by `generate_more`."""
    skip_reason: str = ""
    """The reason why there is nothing to train on. Set by `skip`. Empty if there is something."""
    extras: dict[str, Any] = field(default_factory=dict)
    """Data that stages of other packages leave for each other. Each package uses its own names."""

    def skip(self, reason: str) -> None:
        """Mark that nothing is left to train on. After this, only stages that always run are called. The first reason
        is also reported as a metric."""
        if not self.skip_reason:
            self.skip_reason = reason
            self.metrics[f"batch/skipped_{reason}"] = 1.0

    def go_on(self) -> None:
        """Mark that there is something to train on after all, such as groups kept since earlier steps."""
        self.metrics.pop(f"batch/skipped_{self.skip_reason}", None)
        self.skip_reason = ""

    def generate_more(self) -> None:
        """Request another rollout batch. When the current stage has ended, the stages run again on the next tasks."""
        self.asks_for_more = True

    def take_rollout_batch(self, generated: TrainStep) -> None:
        """Add another rollout batch. The step's tasks, episodes and groups are replaced by the values of that batch.

        Metrics of `counted` are summed over all batches. Other metrics and extras take the values of the latest batch.

        Args:
            generated: the step that generated that batch.
        """
        self.go_on()
        self.asks_for_more = generated.asks_for_more
        self.tasks, self.task_batch = generated.tasks, generated.task_batch
        self.later_batches.append(len(self.generated))
        self.generated += generated.generated
        self.episodes = generated.episodes
        self.offered_groups += generated.offered_groups
        self.trajectory_groups = generated.trajectory_groups
        self.decisions += generated.decisions
        self.given_rewards |= generated.given_rewards
        self.extras |= generated.extras
        for name, value in generated.metrics.items():
            if name in generated.counted:
                self.count(name, value)
            else:
                self.metrics[name] = value
        for stage, seconds in generated.timing_dict.items():
            self.timing_dict[stage] = self.timing_dict.get(stage, 0.0) + seconds
        self.generated_ahead += generated.generated_ahead
        self.skip_reason = generated.skip_reason

    @property
    def rollout_batches(self) -> int:
        """Number of rollout batches in this step so far. It is more than 1 if rejection requested more."""
        return 1 + len(self.later_batches)

    @property
    def generated_by_batch(self) -> list[list[Episode]]:
        """`generated`, one list per rollout batch. A task may appear in several batches. Its rollouts are not compared
        across batches."""
        return [self.generated[a:b] for a, b in pairwise((0, *self.later_batches, len(self.generated)))]

    def decide(
        self,
        outcome: Literal["waiting", "dropped", "masked"],
        rule: str,
        trajectories: Iterable[Trajectory],
        group: TrajectoryGroup | None = None,
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        """Record why trajectories are not trained on in this step; see `Decision`."""
        decided = tuple(trajectories)
        if decided:
            self.decisions.append(
                Decision(outcome=outcome, rule=rule, trajectories=decided, group=group, numbers=numbers or {})
            )

    def count(self, metric: str, number: float) -> None:
        """Add to a metric that is summed over all rollout batches of the step."""
        self.counted.add(metric)
        self.metrics[metric] = self.metrics.get(metric, 0.0) + number

    @property
    def filled_batch(self) -> TokenBatch:
        """The batch, for stages after `build_batch`. Raises RuntimeError if no stage has built it."""
        if self.batch is None:
            raise RuntimeError("no stage has built a batch yet")
        return self.batch
