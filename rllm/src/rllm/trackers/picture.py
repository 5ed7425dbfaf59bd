"""The picture of a run: reward and solved share over training steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def draw_reward_curve(history: Sequence[dict[str, Any]], file: Path, title: str) -> Path | None:
    """Draw the lines of `metrics.jsonl`; returns None when no step has a reward yet.

    Training figures are per step, validation figures are points.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rewards = _series(history, lambda name: name.startswith("reward/") and name.endswith("/mean"))
    if not rewards:
        return None
    metric, (upper, lower) = pyplot.subplots(2, 1, figsize=(8, 6), sharex=True, layout="constrained")
    for name, (steps, values) in rewards.items():
        upper.plot(steps, values, linewidth=1, label=f"training, {name.split('/')[1]}")
    for name, (steps, values) in _series(history, lambda name: _is_validation(name, "reward")).items():
        upper.plot(steps, values, "o", markersize=5, label=f"validation, {_source(name)}")
    for steps, values in _series(history, lambda name: name == "batch/solved").values():
        lower.plot(steps, values, linewidth=1, label="training")
    for name, (steps, values) in _series(history, lambda name: _is_validation(name, "pass@1")).items():
        lower.plot(steps, values, "o", markersize=5, label=f"validation, {_source(name)}")
    upper.set_title(title)
    upper.set_ylabel("mean reward")
    lower.set_ylabel("share of rollouts solved")
    lower.set_xlabel("training steps")
    lower.set_ylim(-0.02, 1.02)
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(loc="lower right", frameon=False)
    metric.savefig(file, dpi=120)
    pyplot.close(metric)
    return file


def _is_validation(name: str, metric: str) -> bool:
    return name.startswith("val/") and name.endswith(f"/{metric}")


def _source(name: str) -> str:
    """``openai/gsm8k`` of ``val/openai/gsm8k/pass@1``."""
    return name.removeprefix("val/").rpartition("/")[0]


def _series(history: Sequence[dict[str, Any]], wanted: Any) -> dict[str, tuple[list[int], list[float]]]:
    """Name to (finished steps, values), for the wanted names that occur."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for line in history:
        for name, value in line.items():
            if wanted(name) and value is not None:
                steps, values = found.setdefault(name, ([], []))
                steps.append(line["step"] + 1)
                values.append(value)
    return found
