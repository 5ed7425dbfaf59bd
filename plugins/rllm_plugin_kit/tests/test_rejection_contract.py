"""Rejection modes that are wrong in one way each, and what the contract tells their authors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.rejection import RejectionPlugin, RejectionResult
from rllm_core.data import codec
from rllm_core.data.types import TrajectoryGroup
from rllm_plugin_kit import RejectionContract


class Pairs:
    """Trains on the groups of two steps at a time."""

    def __init__(self, params: NoParams) -> None:
        self.kept: list[TrajectoryGroup] = []
        self.steps = 0

    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        self.steps += 1
        self.kept += groups
        if self.steps % 2:
            return RejectionResult(train=[], waiting=tuple(self.kept))
        ready, self.kept = self.kept, []
        return RejectionResult(train=ready)

    def state_dict(self) -> dict[str, Any]:
        return {"kept": [codec.group_to_json(group) for group in self.kept], "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = [codec.group_from_json(group) for group in state["kept"]]
        self.steps = state["steps"]


class DropsInSilence(Pairs):
    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        return super().__call__([group for group in groups if len(group.trajectories) > 1])


class TrainsTwice(Pairs):
    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        return RejectionResult(train=groups[:1] * len(groups))


class ChangesGroups(Pairs):
    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        for group in groups:
            group.metadata.clear()
        return super().__call__(groups)


class EmptiesTheList(Pairs):
    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        result = super().__call__(list(groups))
        groups.clear()
        return result


class NamesGroupsOfEarlierSteps(Pairs):
    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        self.kept += groups
        return RejectionResult(train=list(self.kept))


class CountsRightAndNamesWrong(Pairs):
    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        return RejectionResult(train=groups[1:], dropped={"first": groups[1:2]} if groups else {})


class ChangesWhatWaits(Pairs):
    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        result = super().__call__(groups)
        for group in result.train:
            group.metadata.clear()
        return result


class ReturnsCopies(Pairs):
    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        result = super().__call__(groups)
        return replace(result, train=[replace(group, metadata=[]) for group in result.train])


class ForgetsGroups(Pairs):
    def state_dict(self) -> dict[str, Any]:
        return {"kept": [], "steps": self.steps}


class ForgetsItsCount(Pairs):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state | {"steps": 0})


class KeepsObjects(Pairs):
    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kept, "steps": self.steps}


class ShareState(Pairs):
    batches: ClassVar[list[int]] = []

    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        self.batches.append(1)
        self.steps = len(self.batches)
        return super().__call__(groups)


class NeverHasEnough(Pairs):
    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        self.kept += groups
        return RejectionResult(train=[], waiting=tuple(self.kept), more=True)


class AsksForMoreAndTrains(Pairs):
    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        return RejectionResult(train=groups, more=bool(groups))


class ReturnsGroups(Pairs):
    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        return groups  # type: ignore[return-value]


class ExpectsGroups(Pairs):
    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        return RejectionResult(train=[groups[0], *groups[1:]])


class NoState:
    def __init__(self, params: NoParams) -> None:
        pass

    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        return RejectionResult(train=groups)


class TakesNoOptions(Pairs):
    def __init__(self) -> None:
        super().__init__(NoParams())


def record(mode: Any) -> RejectionPlugin[NoParams]:
    return RejectionPlugin(name="mine", summary="Mine.", params=NoParams, load=lambda: mode)


def test_a_good_rejection_has_no_complaints(complaints: Any) -> None:
    assert complaints(RejectionContract, record(Pairs)) == {}


CONSERVATION = "each_group_has_exactly_one_verdict"
RESUMED = "a_resumed_run_continues_exactly"


@pytest.mark.parametrize(
    ("mode", "test", "told"),
    [
        (DropsInSilence, CONSERVATION, "and leaves out"),
        (TrainsTwice, CONSERVATION, "twice: to train"),
        (NamesGroupsOfEarlierSteps, CONSERVATION, "which was neither"),
        (CountsRightAndNamesWrong, CONSERVATION, "'first'"),
        (ReturnsCopies, CONSERVATION, "to train on"),
        (ChangesWhatWaits, CONSERVATION, "changed. Return the"),
        (AsksForMoreAndTrains, CONSERVATION, "Keep them waiting"),
        (ReturnsGroups, CONSERVATION, "rllm_core.contracts.rejection.RejectionResult"),
        (ChangesGroups, "it_does_not_change_groups", "changes the groups"),
        (EmptiesTheList, "it_does_not_change_groups", "or the list"),
        (ForgetsGroups, RESUMED, "rllm_core.data.codec.group_to_json"),
        (ForgetsItsCount, RESUMED, "load_state_dict"),
        (KeepsObjects, RESUMED, "has a state"),
        (ShareState, "same_groups_give_same_verdicts", "Keep state in"),
        (NeverHasEnough, "batches_per_step_are_bounded", "the rollout batches"),
        (ExpectsGroups, "step_without_groups_works", "IndexError"),
        (NoState, CONSERVATION, "rllm_core.contracts.rejection.RejectionMode"),
        (TakesNoOptions, CONSERVATION, "`load`"),
    ],
)
def test_contract_reports_the_mistake(complaint: Any, mode: Any, test: str, told: str) -> None:
    assert told in complaint(RejectionContract, record(mode), test)
