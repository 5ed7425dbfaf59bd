"""Warnings about an agent that never calls the gateway."""

from __future__ import annotations

import pytest

from rllm_core.notices import forget_warnings
from rllm_gateway.workflow import NO_CALL, Silence


@pytest.mark.parametrize(
    ("calls", "warned"), [((0, 0), 1), ((0, 0, 0, 0), 1), ((0,), 0), ((0, 1, 0, 0), 0), ((3, 0, 0), 0)]
)
def test_a_step_without_a_call_is_told_of_once(
    calls: tuple[int, ...], warned: int, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_warnings()
    silence = Silence(2)
    for each in calls:
        silence.note(each)
    assert capsys.readouterr().err.count(NO_CALL) == warned
