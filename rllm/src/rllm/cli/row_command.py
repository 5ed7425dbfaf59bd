"""A command for an objective that learns from rows of data: its flags, and its run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from rllm.cli.configuring import FLAGS, VERBATIM, Request, config_options
from rllm.cli.train import Start, train_or_check
from rllm.config.choices import OBJECTIVE_KEY
from rllm.planning.plan import RunPlan
from rllm_core.errors import ConfigError

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
ROW_FLAGS = {
    **{name: FLAGS[name] for name in ("backend", "profile", "seed")},
    "data": (FLAGS["data"][0], "Rows to train on: a file, or a dataset by name."),
    "val-data": (FLAGS["val-data"][0], "Rows to validate on: a file, or a dataset by name."),
}
"""Flags of every such command, with the same keys as in `rllm train`."""


def row_options(stage: str) -> Callable[[FunctionT], FunctionT]:
    """Return a decorator that adds `ROW_FLAGS`, and the flags for long rows, which are options of `stage`."""

    def decorate(function: FunctionT) -> FunctionT:
        function = click.option(
            "--long-rows",
            type=click.Choice(["cut", "drop", "error"]),
            help=f"Longer rows are cut off (default), dropped, or an error. [option of stage {stage}]",
        )(function)
        text = f"Maximum tokens of a row. The run's longest context is a limit too. [option of stage {stage}]"
        function = click.option("--max-length", type=click.IntRange(2), metavar="N", help=text)(function)
        return config_options(*ROW_FLAGS, table=ROW_FLAGS, words="[KEY=VALUE]...")(function)

    return decorate


def read_row_request(
    objective: str,
    words: Sequence[str],
    model: str | None,
    files: Sequence[str],
    flags: Mapping[str, Any],
    stage_options: Mapping[str, Sequence[str]],
) -> Request:
    """Take a command line apart.

    Args:
        objective: name of the objective.
        words: ``key=value`` overrides.
        model: value of ``--model``.
        files: config files.
        flags: values of all other flags by name, with underscores. None: not on the command line.
        stage_options: names of the flags that are options of a stage, by stage.
    """
    if strange := [word for word in words if "=" not in word]:
        raise click.UsageError(f"{strange[0]!r} is no KEY=VALUE. Give the data with --data FILE.")
    given = {name.replace("_", "-"): value for name, value in flags.items() if value is not None}
    choices: dict[str, Any] = {FLAGS[name][0]: given[name] for name in VERBATIM if name in given}
    choices[OBJECTIVE_KEY] = objective
    for stage, names in stage_options.items():
        options = {name: flags[name] for name in names if flags.get(name) is not None}
        choices |= {f"rllm.pipeline.options.{stage}.{name}": value for name, value in options.items()}
    overrides = [f"{FLAGS[name][0]}={given[name]}" for name in ("backend", "profile", "seed") if name in given]
    return Request(None, model, files, [*overrides, *words], choices)


def train_on_rows(request: Request, start: Start, hint: str) -> int:
    """Train, or check the run. Return the exit code. `hint` is the flag that sets the data."""

    def make_plan() -> RunPlan:
        plan = start.plan(request)
        if plan.train_dataset is None:
            raise ConfigError("no-training-tasks", "There are no training rows.", f"Add {hint}.")
        return plan

    return train_or_check(make_plan, start)
