"""Version spans cover a response, and its weight version is the oldest of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from expecting import check_values

from rllm_core.contracts.engine import Completion
from rllm_core.data.types import Step, Trajectory
from rllm_core.data.version_spans import VersionSpan

Make = Callable[..., Any]


def _completion(**fields: Any) -> Completion:
    ids, logprobs = np.array([3, 4, 5], np.int32), np.zeros(3, np.float32)
    return Completion(token_ids=ids, logprobs=logprobs, finish_reason="stop", **fields)


def _step(**fields: Any) -> Step:
    return Step([1, 2], [3, 4, 5], [-0.1, -0.2, -0.3], **fields)


def _added(**fields: Any) -> Step:
    return Trajectory("agent").add_step([1, 2], [3, 4, 5], None, **fields)


MADE = pytest.mark.parametrize("make", [_completion, _step, _added], ids=["completion", "step", "step of a trajectory"])


@MADE
def test_spans_cover_the_response(make: Make) -> None:
    assert make(weight_version=4).version_spans == ()
    spans = (VersionSpan(4, 2), VersionSpan(5, 1))
    assert make(weight_version=4, version_spans=spans).version_spans == spans


@MADE
@pytest.mark.parametrize("tokens", [[2], [2, 2], [3, 0], [4, -1]], ids=str)
def test_spans_that_do_not_add_up_are_refused(make: Make, tokens: list[int]) -> None:
    spans = tuple(VersionSpan(4, number) for number in tokens)
    with pytest.raises(ValueError, match="version spans") as caught:
        make(weight_version=4, version_spans=spans)
    check_values(str(caught.value), tokens, 3)


@MADE
@pytest.mark.parametrize("version", [3, 5])
def test_weight_version_must_be_the_oldest(make: Make, version: int) -> None:
    with pytest.raises(ValueError, match=f"weight_version.* {version}.* 4"):
        make(weight_version=version, version_spans=(VersionSpan(5, 2), VersionSpan(4, 1)))


def test_rejected_step_leaves_its_trajectory_unchanged() -> None:
    trajectory = Trajectory("agent")
    trajectory.add_step([1, 2], [3], [-0.1])
    with pytest.raises(ValueError, match="version spans of"):
        trajectory.add_step([1, 2, 3], [4, 5], None, version_spans=(VersionSpan(0, 1),))
    trajectory.add_step([1, 2, 3], [6], [-0.2])
    assert trajectory.tokens.ids.tolist() == [1, 2, 3, 6]
    assert (len(trajectory.steps), trajectory.tokens.turns) == (2, 2)


def test_added_step_keeps_its_version_spans() -> None:
    spans = (VersionSpan(5, 1), VersionSpan(4, 2))
    trajectory = Trajectory("agent", [_step(weight_version=4, version_spans=spans)])
    assert trajectory.tokens.ids.tolist() == [1, 2, 3, 4, 5]
    assert trajectory.steps[0].version_spans == spans
