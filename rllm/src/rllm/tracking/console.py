"""The tracker `console`: a live line in a terminal, plain lines elsewhere, and the best validation losses."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rllm.planning.scoring import DISAGREEMENT
from rllm.runs.validation_metrics import split_validation_name
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.contracts.train_step import TrainStep
from rllm_record.run_files import read_metrics

SECONDS_BETWEEN_LINES = 5.0
"""Seconds between lines without a terminal, so that a log file does not get a line for every step."""


class ConsoleTracker(Observer):
    """Shows finished steps, solved, reward, tokens per second and time left."""

    def __init__(self, run: TrackedRun, params: NoParams) -> None:
        self._console = Console(file=sys.stdout, soft_wrap=True, highlight=False, markup=False)
        self._progress: Progress | None = None
        self._started = time.monotonic()
        self._last_line = -SECONDS_BETWEEN_LINES
        self._first_step = 0
        self._total_steps = 0
        self._directory = run.directory
        self._shown_metrics = run.shown_metrics
        self._best = BestLosses()
        self._has_reported_rise = False

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        self._started = time.monotonic()
        self._first_step, self._total_steps = first_step, total_steps
        if first_step:
            for line in read_metrics(self._directory):
                validated = {
                    name: value for name, value in line.items() if name.startswith("val/") and value is not None
                }
                self._best.note(line["step"] + 1, validated)
            self._console.print(f"resuming after {first_step} of {total_steps} steps")
        if not self._console.is_terminal:
            return
        self._progress = Progress(
            MofNCompleteColumn(),
            TextColumn("steps"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[metrics]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=self._console,
            expand=True,
        )
        self._task = self._progress.add_task("train", total=total_steps, completed=first_step, metrics="starting")
        self._progress.start()

    def on_batch_end(self, step: TrainStep) -> None:
        finished = step.global_step + 1
        metrics = format_step(step.metrics, self._shown_metrics)
        if step.skip_reason:
            metrics += f"  (no update: {step.skip_reason.replace('_', ' ')})"
        if self._progress is not None:
            self._progress.update(self._task, completed=finished, metrics=metrics)
            return
        now = time.monotonic()
        is_last = finished == step.total_steps
        if is_last or now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            self._console.print(
                f"{finished}/{step.total_steps} steps  {metrics}  {self._remaining_time(finished)} left"
            )

    def on_validation_end(self, global_step: int, metrics: dict[str, float]) -> None:
        risen = self._best.note(global_step, metrics)
        line = f"validation after {_steps(global_step)}: {validation_metrics(metrics)}"
        self._console.print("; ".join((line, *_best_losses(self._best, global_step))))
        if risen is not None and not self._has_reported_rise:
            self._has_reported_rise = True
            self._console.print(_describe_rise(risen))

    def on_train_end(self, global_step: int) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """Do nothing, because the observer's events provide all output."""

    def close(self) -> None:
        self.on_train_end(0)

    def _remaining_time(self, finished: int) -> str:
        made = finished - self._first_step
        seconds = (time.monotonic() - self._started) / made * (self._total_steps - finished)
        return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def format_step(metrics: Mapping[str, float], shown: Mapping[str, str]) -> str:
    """Return ``solved 41.0%  reward 0.312  5210 tokens/s``.

    Metrics in `shown` come first, by their labels. They are the only metrics if no rollout has a reward. Without them,
    a step without rollouts shows its loss. Shares of unreadable responses and of disagreements are shown above 0.
    """
    parts = [_format_metric(label, metrics[name]) for name, label in shown.items() if name in metrics]
    if not parts and "batch/solved" not in metrics and "actor/loss" in metrics:
        parts = [_format_metric("loss", metrics["actor/loss"])]
    rewards = [value for name, value in metrics.items() if name.startswith("reward/") and name.endswith("/mean")]
    solved = metrics.get("batch/solved", 0.0)
    if solved or any(rewards) or not parts:
        parts.append(_format_metric("solved %", solved))
        if rewards:
            parts.append(f"reward {in_three_digits(sum(rewards) / len(rewards)):>6}")
    parts += [_format_metric(label, value) for label, value in _reward_problems(metrics).items() if value > 0]
    parts.append(f"{metrics.get('time/tokens_per_second', 0.0):5.0f} tokens/s")
    return "  ".join(parts)


def _reward_problems(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return shares of rollouts by label. If several rewards report unreadable responses, the largest share."""
    unreadable = [
        value for name, value in metrics.items() if name.startswith("env/reward.") and name.endswith(".unreadable")
    ]
    return {
        "unreadable %": max(unreadable, default=0.0),
        "rewards disagree %": metrics.get(f"env/{DISAGREEMENT}", 0.0),
    }


def _format_metric(label: str, value: float) -> str:
    if label.endswith("%"):
        return f"{label[:-1].rstrip()} {100 * value:5.1f}%"
    return f"{label} {in_three_digits(value)}"


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number} steps"


def _describe_rise(best: BestLoss) -> str:
    remedy = f"Train less, with rllm.trainer.total_batches={best.after}, or lower" if best.after else "Lower"
    best_loss = f"{in_three_digits(best.loss)} after {_steps(best.after)}"
    return f"The validation loss rises: the best was {best_loss}. {remedy} the learning rate."


def _best_losses(best: BestLosses, finished: int) -> list[str]:
    """Return ``best loss of default 1.234 after 8 steps`` for each source whose best loss is not the last one."""
    return [
        f"best loss of {source} {in_three_digits(each.loss)} after {_steps(each.after)}"
        for source, each in best.by_source.items()
        if each.after != finished
    ]


def in_three_digits(value: float, sign: str = "") -> str:
    """Return a number as ``0.312``, or as ``2.500e+199`` from a million. `sign` is ``+`` to show a plus sign."""
    return f"{value:{sign}.3{'f' if abs(value) < 1e6 else 'e'}}"


def validation_metrics(metrics: Mapping[str, float]) -> str:
    """Return ``guess pass@1 0.412  reward 0.310 …``, with one part per data source."""
    by_source: dict[str, list[str]] = {}
    for name, value in metrics.items():
        source, metric = split_validation_name(name)
        by_source.setdefault(source, []).append(f"{metric} {in_three_digits(value)}")
    return "; ".join(f"{source}: {'  '.join(parts)}" for source, parts in by_source.items())


RISE = 1.01
"""A loss above the best loss times this has risen. Validations use the same rows, so their losses have no noise."""


@dataclass(frozen=True)
class BestLoss:
    """The lowest validation loss of a data source."""

    loss: float
    after: int
    """Number of steps before that validation."""


class BestLosses:
    """The best loss of each data source so far."""

    def __init__(self) -> None:
        self.by_source: dict[str, BestLoss] = {}

    def note(self, finished_steps: int, metrics: Mapping[str, float]) -> BestLoss | None:
        """Compare the losses of a validation with the best ones. Return the best loss of a source whose loss rises."""
        risen = None
        for name, loss in metrics.items():
            source, metric = split_validation_name(name)
            if metric != "loss":
                continue
            best = self.by_source.get(source)
            if best is None or loss < best.loss:
                self.by_source[source] = BestLoss(loss, finished_steps)
            elif loss > best.loss * RISE:
                risen = risen or best
        return risen
