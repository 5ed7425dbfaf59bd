"""The built-in stage reject: it decides which groups are trained on now, and if more tasks are needed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.rejection import RejectionResult
from rllm_core.contracts.stage_context import StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import TrajectoryGroup
from rllm_core.errors import CheckpointError, PipelineError, failures_as
from rllm_core.pipeline.metrics import find_reward
from rllm_core.pipeline.result_check import misplaced, recognized

MOST_BATCHES = 1000
"""Number of batches in one step after which a mode that requests more is considered broken."""


class Reject:
    """Decides which groups are trained on now (`rllm.rejection_sample`). The mode may keep groups for later steps.

    It also runs if this step has no groups, because earlier groups may be waiting. If an earlier stage skipped the
    step, its groups are not passed to the mode. They are counted as dropped for that reason.
    """

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._mode = context.rejection
        self._name = context.rejection_name
        self._waiting: list[TrajectoryGroup] | None = []
        """None after a resume. The first result then contains these groups, and `_waiting_ids` contains their ids."""
        self._waiting_ids: list[str] = []

    async def __call__(self, step: TrainStep) -> None:
        step.count("batch/groups_before_filter", len(step.trajectory_groups))
        if step.skip_reason and step.trajectory_groups:
            step.count(f"batch/groups_dropped_{step.skip_reason}", len(step.trajectory_groups))
            _decide(step, "dropped", step.skip_reason, step.trajectory_groups)
            step.trajectory_groups = []
        result = self._result(step)
        self._waiting = list(result.waiting)
        self._waiting_ids = [group.group_id for group in self._waiting]
        step.metrics["batch/groups_after_filter"] = float(len(result.train))
        step.metrics["batch/groups_waiting"] = float(len(result.waiting))
        step.metrics["batch/rollout_batches"] = float(step.rollout_batches)
        for reason, groups in result.dropped.items():
            step.count(f"batch/groups_dropped_{reason}", len(groups))
            _decide(step, "dropped", reason, groups)
        if not result.more:
            _decide(step, "waiting", "waiting", result.waiting)
        step.trajectory_groups = result.train
        if result.more:
            step.generate_more()
        elif result.train:
            step.go_on()
        else:
            step.skip("waiting_for_more_groups" if result.waiting else "all_groups_rejected")

    def _result(self, step: TrainStep) -> RejectionResult:
        """Return the mode's result after checking that it contains every group."""
        offered, mode = list(step.trajectory_groups), f"Rejection mode {self._name!r}"
        with failures_as(PipelineError, mode):
            result = self._mode(step.trajectory_groups)
            if not isinstance(result, RejectionResult):
                raise PipelineError(
                    "bad-rejection-result", f"{mode} returned {result!r:.80}.", "Return a RejectionResult."
                )
            waited = recognized(result, offered, self._waiting_ids) if self._waiting is None else self._waiting
            problem = misplaced(result, [*offered, *waited])
        if problem:
            raise PipelineError(
                "bad-rejection-result",
                f"{mode} was offered {len(offered)} groups while {len(waited)} were waiting, and {problem}.",
                "Put every group, as the same object, into one of `train`, `waiting` and `dropped` of the result.",
            )
        if result.more and step.rollout_batches >= MOST_BATCHES:
            raise PipelineError(
                "bad-rejection-result",
                f"{mode} still requests more tasks after {MOST_BATCHES} batches of tasks in one step.",
                "Limit how often the mode returns `more`.",
            )
        if result.more and result.train:
            raise PipelineError(
                "bad-rejection-result",
                f"{mode} requests more tasks and returns {len(result.train)} groups to train on.",
                "Return these groups in `waiting` until the mode has enough groups.",
            )
        return result

    def state_dict(self) -> dict[str, Any]:
        return {"mode": self._name, "state": self._mode.state_dict(), "waiting": self._waiting_ids}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["mode"] != self._name and (state["state"] or self._mode.state_dict()):
            raise CheckpointError(
                "run-changed",
                f"The checkpoint was made with rejection mode {state['mode']}, and this run has {self._name}. "
                "Waiting groups cannot be transferred between modes.",
                "Resume with the value of rllm.rejection_sample.mode with which the run started.",
            )
        if state["mode"] == self._name:
            self._mode.load_state_dict(state["state"])
            self._waiting, self._waiting_ids = None, state["waiting"]


def _decide(
    step: TrainStep, outcome: Literal["waiting", "dropped"], reason: str, groups: Iterable[TrajectoryGroup]
) -> None:
    for group in groups:
        step.decide(outcome, f"reject/{reason}", group.trajectories, group, _collect_numbers(group))


def _collect_numbers(group: TrajectoryGroup) -> dict[str, float]:
    """Return the values that modes use: number of rollouts, number of solved rollouts, smallest and largest reward."""
    rewards = [reward for reward in map(find_reward, group.trajectories) if reward is not None]
    numbers = {"trajectories": float(len(group.trajectories))}
    if group.metadata:
        numbers["solved"] = float(sum(bool(entry.get("is_correct")) for entry in group.metadata))
    if rewards:
        numbers |= {"reward_min": min(rewards), "reward_max": max(rewards)}
    return numbers
