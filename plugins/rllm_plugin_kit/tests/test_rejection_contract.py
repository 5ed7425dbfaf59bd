"""Rejection modes that are wrong in one way each, and what the contract tells their authors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from rllm_core.contracts import NoParams, RejectionPlugin, RejectionResult
from rllm_core.data import codec
from rllm_core.data.types import TrajectoryGroup
from rllm_plugin_kit import RejectionContract

from .conftest import vary


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


def mode(verdict: Callable[[list[TrajectoryGroup]], Any]) -> type[Pairs]:
    """Return a mode without state whose verdict is this function of the groups."""
    return vary(Pairs, __call__=lambda self, groups: verdict(groups))


def keep(self: Pairs, groups: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
    self.kept += groups
    return list(self.kept)


def name_first(groups: list[TrajectoryGroup]) -> RejectionResult:
    """Count right and name wrong."""
    return RejectionResult(train=groups[1:], dropped={"first": groups[1:2]} if groups else {})


class ShareState(Pairs):
    batches: ClassVar[list[int]] = []

    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        self.batches.append(1)
        self.steps = len(self.batches)
        return super().__call__(groups)


def record(mode: Any) -> RejectionPlugin[NoParams]:
    return RejectionPlugin(name="mine", summary="Mine.", params=NoParams, load=lambda: mode)


def test_a_good_rejection_has_no_complaints(complaints: Any) -> None:
    assert complaints(RejectionContract, record(Pairs)) == {}


CONSERVATION = "each_group_has_exactly_one_verdict"
RESUMED = "a_resumed_run_continues_exactly"


@pytest.mark.parametrize(
    ("made", "test", "told"),
    [
        (
            mode(lambda groups: RejectionResult(train=[each for each in groups if len(each.trajectories) > 1])),
            CONSERVATION,
            "and leaves out",
        ),
        (mode(lambda groups: RejectionResult(train=groups[:1] * len(groups))), CONSERVATION, "twice: to train"),
        (
            vary(Pairs, __call__=lambda self, groups: RejectionResult(train=keep(self, groups))),
            CONSERVATION,
            "which was neither",
        ),
        (mode(name_first), CONSERVATION, "'first'"),
        (ReturnsCopies, CONSERVATION, "to train on"),
        (ChangesWhatWaits, CONSERVATION, "changed. Return the"),
        (mode(lambda groups: RejectionResult(train=groups, more=bool(groups))), CONSERVATION, "Keep them waiting"),
        (mode(lambda groups: groups), CONSERVATION, "rllm_core.contracts.rejection.RejectionResult"),
        (ChangesGroups, "it_does_not_change_groups", "changes the groups"),
        (EmptiesTheList, "it_does_not_change_groups", "or the list"),
        (vary(Pairs, state_dict=lambda self: {"kept": [], "steps": self.steps}), RESUMED, "codec.group_to_json"),
        (
            vary(Pairs, load_state_dict=lambda self, state: Pairs.load_state_dict(self, state | {"steps": 0})),
            RESUMED,
            "load_state_dict",
        ),
        (vary(Pairs, state_dict=lambda self: {"kept": self.kept, "steps": self.steps}), RESUMED, "has a state"),
        (ShareState, "same_groups_give_same_verdicts", "Keep state in"),
        (
            vary(
                Pairs,
                __call__=lambda self, groups: RejectionResult(train=[], waiting=keep(self, groups), more=True),
            ),
            "batches_per_step_are_bounded",
            "the rollout batches",
        ),
        (
            mode(lambda groups: RejectionResult(train=[groups[0], *groups[1:]])),
            "step_without_groups_works",
            "IndexError",
        ),
        (
            lambda params: lambda groups: RejectionResult(train=groups),
            CONSERVATION,
            "rejection.RejectionMode",
        ),
        (lambda: Pairs(NoParams()), CONSERVATION, "`load`"),
    ],
)
def test_contract_reports_the_mistake(complaint: Any, made: Any, test: str, told: str) -> None:
    assert told in complaint(RejectionContract, record(made), test)
