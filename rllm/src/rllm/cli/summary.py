"""The table at the end of a run, with the metrics reached and their differences from the best possible values."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from rllm.planning.plan import RunPlan
from rllm.planning.preflight import find_validation_option
from rllm.runs.validation_metrics import split_validation_name
from rllm.tracking.console import in_three_digits
from rllm_core.data.types import Task
from rllm_record.run_files import REPORT

if TYPE_CHECKING:
    from rllm.training.loop import TrainingLoop

NARROWEST = 72
"""Width of the widest usual row, in columns."""


def show_summary(plan: RunPlan, trainer: TrainingLoop, val_tasks: Sequence[Task], seconds: float) -> None:
    """Print the last validation, the run directory, and the commands for the next steps."""
    console = results_console()
    if trainer.last_validation:
        console.print(results_table(plan, trainer.last_validation))
    directory = trainer.directory.path
    of_them = "" if trainer.num_new_steps == trainer.finished_steps else f", the last {trainer.num_new_steps} of them"
    steps = f"{trainer.finished_steps} step{'s' * (trainer.finished_steps != 1)}"
    console.print(f"{steps}{of_them} in {seconds:.0f} s; everything is in {directory}")
    if (directory / REPORT).exists():
        console.print(f"reward curve: {directory / REPORT}")
    if (directory / "checkpoints" / "latest").exists():
        checkpoint = f"{directory}/checkpoints/latest"
        if plan.rows is None:
            lacking = "" if val_tasks else training_tasks_option(plan)
            name = shlex.quote(plan.config.rllm.env.name)
            console.print(f"evaluate the model: rllm eval {name} --model {checkpoint}{lacking}")
        else:
            for line in plan.rows.next_commands(checkpoint):
                console.print(line)
            console.print(f"use it elsewhere: rllm export {directory} --to hf")
    if plan.recorded != "off":
        console.print(f"view the run: rllm view {directory}")
        console.print(f"explain {'a rollout' if plan.rows is None else 'an example'}: rllm why {directory}")


def training_tasks_option(plan: RunPlan) -> str:
    """Return the arguments that evaluate on the training tasks, with FILE if they come from no file."""
    if option := find_validation_option(plan):
        return f" {option}"
    path = getattr(plan.train_dataset.params, "path", None) if plan.train_dataset else None
    return f" --data {shlex.quote(path) if isinstance(path, str) and Path(path).is_file() else 'FILE'}"


def results_console() -> Console:
    """Return a console wide enough for `results_table`, so that no metric is cut off."""
    console = Console(highlight=False, soft_wrap=True)
    return Console(highlight=False, soft_wrap=True, width=NARROWEST) if console.width < NARROWEST else console


def results_table(plan: RunPlan, metrics: Mapping[str, float]) -> Table:
    """Return a table of validation metrics, with the best possible values if the environment provides them."""
    rollouts = plan.config.rllm.rollout.n_val
    # The user's own rewards are added to the environment's reward, so the environment's best value is not the run's.
    best = dict(plan.environment.plugin.best_possible) if plan.environment and not plan.rewards else {}
    best |= {f"pass@{k}": 1.0 for k in {1, rollouts}}
    title = f"validation, {rollouts} rollouts per task" if plan.rows is None else "validation"
    table = Table(title=title, title_justify="left")
    table.add_column("metric", no_wrap=True)
    for heading in ("reached", "best possible", "difference") if plan.rows is None else ("reached",):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, value in metrics.items():
        source, metric = split_validation_name(name)
        label = f"{source} {metric}" + (" (solved)" if metric == "pass@1" else "")
        compared = (in_three_digits(best[metric]), in_three_digits(value - best[metric], "+")) if metric in best else ()
        table.add_row(label, in_three_digits(value), *compared)
    return table
