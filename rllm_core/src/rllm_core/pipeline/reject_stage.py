"""The built-in stage reject: which groups are trained on now, and whether more tasks are played for them."""

from __future__ import annotations

from typing import Any

from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.rejection import Verdict
from rllm_core.contracts.stage_context import StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.errors import CheckpointError, PipelineError, RllmError

MOST_ROUNDS = 1000
"""Batches of tasks in one step after which a mode that asks for more is taken to be broken."""


class Reject:
    """Decides which groups are trained on now (`rllm.rejection_sample`); the mode may keep groups for later steps.

    It runs even when this step brought no groups: some may be waiting. Groups of a step that an earlier stage skipped
    are not offered, and counted as dropped for that reason.
    """

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._mode = context.rejection
        self._name = context.rejection_name
        self._more_tasks = context.more_tasks
        self._waiting = 0

    async def __call__(self, step: TrainStep) -> None:
        step.count("batch/groups_before_filter", len(step.trajectory_groups))
        if step.skip_reason and step.trajectory_groups:
            step.count(f"batch/groups_dropped_{step.skip_reason}", len(step.trajectory_groups))
            step.trajectory_groups = []
        verdict = self._verdict(step)
        self._waiting = verdict.waiting
        step.metrics["batch/groups_after_filter"] = float(len(verdict.train))
        step.metrics["batch/groups_waiting"] = float(verdict.waiting)
        step.metrics["batch/rounds"] = float(step.rounds)
        for reason, number in verdict.dropped.items():
            step.count(f"batch/groups_dropped_{reason}", number)
        step.trajectory_groups = verdict.train
        if verdict.more:
            step.play_more(self._more_tasks())
        elif verdict.train:
            step.go_on()
        else:
            step.skip("waiting_for_more_groups" if verdict.waiting else "all_groups_rejected")

    def _verdict(self, step: TrainStep) -> Verdict:
        """What the mode returns, if it accounts for every group."""
        try:
            verdict = self._mode(step.trajectory_groups)
        except RllmError:
            raise
        except Exception as error:
            raise PipelineError(
                f"Rejection mode {self._name!r} failed: {type(error).__name__}: {error}.",
                "Mend it; add --debug to see where it failed.",
            ) from error
        if not isinstance(verdict, Verdict):
            raise PipelineError(f"Rejection mode {self._name!r} returned {verdict!r:.80}.", "Return a Verdict.")
        offered = len(step.trajectory_groups) + self._waiting
        told = len(verdict.train) + verdict.waiting + sum(verdict.dropped.values())
        if told != offered:
            raise PipelineError(
                f"Rejection mode {self._name!r} was offered {len(step.trajectory_groups)} groups while "
                f"{self._waiting} were waiting, and tells of {told}: {len(verdict.train)} to train on, "
                f"{verdict.waiting} waiting, {sum(verdict.dropped.values())} dropped.",
                "Account for every group in one of the three; name the reason of those that are dropped.",
            )
        if len({id(group) for group in verdict.train}) < len(verdict.train):
            raise PipelineError(
                f"Rejection mode {self._name!r} returns a group twice to train on.", "Return each group once."
            )
        if verdict.more and step.rounds >= MOST_ROUNDS:
            raise PipelineError(
                f"Rejection mode {self._name!r} still asks for more after {MOST_ROUNDS} batches of tasks in one step.",
                "Bound how often it asks.",
            )
        if verdict.more and verdict.train:
            raise PipelineError(
                f"Rejection mode {self._name!r} asks for more groups and returns {len(verdict.train)} to train on.",
                "Keep them waiting until there are enough.",
            )
        return verdict

    def state_dict(self) -> dict[str, Any]:
        return {"mode": self._name, "state": self._mode.state_dict(), "waiting": self._waiting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["mode"] != self._name and (state["state"] or self._mode.state_dict()):
            raise CheckpointError(
                f"The checkpoint was made with rejection mode {state['mode']}, this run has {self._name}; "
                "what waits in one means nothing to the other.",
                "Resume with the rllm.rejection_sample.mode the run was started with.",
            )
        if state["mode"] == self._name:
            self._mode.load_state_dict(state["state"])
            self._waiting = state["waiting"]
