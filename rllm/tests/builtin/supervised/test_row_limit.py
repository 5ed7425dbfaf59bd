"""A row that is longer than the limit is cut off, dropped or an error, and is counted and named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from expecting import expect_error

from rllm.builtin.supervised.turns import ExamplesParams
from rllm.rows.row_limit import RowFitter, RowLimit
from rllm_core.data.types import Episode, Trajectory
from rllm_core.errors import ConfigError
from rllm_core.notices import forget_warnings

Turns = list[tuple[str, str]]
SHORT: Turns = [("ab", "c")]
TWO: Turns = [("ab", "cd"), ("abcdef", "ghi")]
"""A row of nine tokens with two responses."""
REWRITTEN: Turns = [("ab", "cd"), ("xyzxyzxyz", "u")]
"""Two rows, because the second prompt does not extend the first."""


def episode(*trajectories: Turns, task: str = "7") -> Episode:
    made = [Trajectory(f"role{place}") for place, _ in enumerate(trajectories)]
    for trajectory, turns in zip(made, trajectories, strict=True):
        for prompt, response in turns:
            trajectory.add_step([*map(ord, prompt)], [*map(ord, response)], None)
    return Episode(id=f"{task}:0", trajectories=made)


def turns_of(fitted: Episode) -> list[Turns]:
    def text(ids: np.ndarray) -> str:
        return "".join(map(chr, ids))

    return [
        [(text(step.prompt_ids), text(step.response_ids)) for step in trajectory.steps]
        for trajectory in fitted.trajectories
    ]


@pytest.mark.parametrize(
    ("tokens", "trajectories", "together", "left", "counted"),
    [
        (9, [TWO], False, [TWO], {}),
        (8, [TWO], False, [[("ab", "cd"), ("abcdef", "gh")]], {"rows_cut": 1}),
        (6, [TWO], False, [[("ab", "cd")]], {"rows_cut": 1}),
        (3, [TWO], False, [[("ab", "c")]], {"rows_cut": 1}),
        (2, [TWO], False, [], {"rows_dropped": 1}),
        (9, [REWRITTEN], False, [[("ab", "cd")]], {"rows_cut": 1}),
        (4, [SHORT, [("wxyz", "u")]], False, [SHORT], {"rows_cut": 1}),
        (4, [SHORT, [("wxyz", "u")]], True, [], {"rows_dropped": 1}),
        (4, [SHORT, [("w", "xyzu")]], True, [SHORT, [("w", "xyz")]], {"rows_cut": 1}),
        (4, [[("ab", "")]], False, [], {"rows_dropped": 1}),
        (4, [SHORT, [("ab", "")]], True, [], {"rows_dropped": 1}),
    ],
)
def test_rows_above_the_limit_are_cut_or_dropped(
    tokens: int, trajectories: list[Turns], together: bool, left: list[Turns], counted: dict[str, int]
) -> None:
    fitter = RowFitter(RowLimit(tokens, is_context=True))
    assert turns_of(fitter.fit(episode(*trajectories), together=together)) == left
    assert fitter.report("batch") == {f"batch/{name}": count for name, count in counted.items()}
    assert fitter.report("batch") == {}


def test_option_drops_long_rows_or_raises_an_error() -> None:
    fitter = RowFitter(RowLimit(8, is_context=False, long_rows="drop"))
    assert fitter.fit(episode(TWO)).trajectories == []
    assert fitter.report("batch") == {"batch/rows_dropped": 1}
    fitter = RowFitter(RowLimit(8, is_context=False, long_rows="error"))
    assert turns_of(fitter.fit(episode(SHORT))) == [SHORT]
    with expect_error(ConfigError, "row-too-long", "'7'", "9 tokens", "--max-length 8"):
        fitter.fit(episode(TWO))


@pytest.mark.parametrize(("max_length", "tokens"), [(None, 100), (99, 99), (100, 100), (101, 100)])
def test_limit_is_at_most_the_context(max_length: int | None, tokens: int) -> None:
    limit = RowLimit.lowest(ExamplesParams(max_length=max_length), 100)
    assert (limit.tokens, limit.is_context) == (tokens, max_length not in (99, 100))


def test_one_warning_names_the_first_rows(capsys: Any) -> None:
    forget_warnings()
    fitter = RowFitter(RowLimit(4, is_context=False))
    for _ in range(2):
        for task in "abcde":
            fitter.fit(episode(TWO, task=task))
        fitter.report("batch")
    (line,) = capsys.readouterr().err.splitlines()
    assert all(text in line for text in ("5 rows", "'a', 'b', 'c'", "--max-length 4", "batch/rows_cut"))
