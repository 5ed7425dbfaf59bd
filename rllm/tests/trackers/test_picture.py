"""The picture of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rllm.runs.run_directory import PICTURE as FILE_NAME
from rllm.trackers.picture import draw_reward_curve

HISTORY: list[dict[str, Any]] = [
    {"step": -1, "val/openai/gsm8k/reward": 0.1, "val/openai/gsm8k/pass@1": 0.2},
    {"step": 0, "reward/agent/mean": 0.1, "batch/solved": 0.0},
    {"step": 1, "reward/agent/mean": None, "batch/solved": 0.5},
    {"step": 2, "reward/agent/mean": 0.3, "reward/judge/mean": 0.9, "batch/solved": 0.5},
]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that were closed, for a look at what is on them."""
    from matplotlib import pyplot

    metrics: list[Any] = []
    close = pyplot.close
    monkeypatch.setattr(pyplot, "close", lambda metric: (metrics.append(metric), close(metric)))
    return metrics


def _lines(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}


def test_a_png_is_written(tmp_path: Path) -> None:
    file = draw_reward_curve(HISTORY, tmp_path / FILE_NAME, "guess")
    assert file == tmp_path / FILE_NAME
    assert file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_lines_are_over_finished_steps_and_leave_out_what_is_missing(tmp_path: Path, drawn: list[Any]) -> None:
    draw_reward_curve(HISTORY, tmp_path / FILE_NAME, "guess")
    upper, lower = drawn[0].axes
    assert _lines(upper) == {
        "training, agent": ([1, 3], [0.1, 0.3]),
        "training, judge": ([3], [0.9]),
        "validation, openai/gsm8k": ([0], [0.1]),
    }
    assert _lines(lower) == {"training": ([1, 2, 3], [0.0, 0.5, 0.5]), "validation, openai/gsm8k": ([0], [0.2])}
    assert upper.get_title() == "guess"


def test_rewards_alone_are_enough(tmp_path: Path) -> None:
    assert draw_reward_curve([{"step": 0, "reward/agent/mean": 0.5}], tmp_path / FILE_NAME, "guess") is not None


@pytest.mark.parametrize("history", [[], HISTORY[:1], [{"step": 0, "batch/solved": 0.5}], HISTORY[2:3]])
def test_without_rewards_there_is_no_picture(tmp_path: Path, history: list[dict[str, Any]]) -> None:
    assert draw_reward_curve(history, tmp_path / FILE_NAME, "guess") is None
    assert list(tmp_path.iterdir()) == []


def test_figures_do_not_stay_in_memory(tmp_path: Path) -> None:
    from matplotlib import pyplot

    draw_reward_curve(HISTORY, tmp_path / FILE_NAME, "guess")
    assert pyplot.get_fignums() == []
