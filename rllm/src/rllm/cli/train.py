"""`rllm train`: compose the config, open the run directory, train, and print the results."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from rllm.cli.configuring import (
    PLANNING_FLAGS,
    CommandLine,
    Request,
    TrainCommand,
    config_options,
    read_request,
    run_plan_for,
)
from rllm.cli.dry_run import chosen_keys, describe_plan, show_data, show_plan
from rllm.planning.plan import RunPlan
from rllm_core.errors import ConfigError

if TYPE_CHECKING:
    from rllm.cli.estimate import Estimate
    from rllm.planning.lengths import Lengths
    from rllm.rows.summary import RowSummary
    from rllm.runs.run_directory import RunDirectory
    from rllm.training.loop import TrainingLoop


@dataclass(frozen=True)
class Start:
    """How a command starts its run."""

    resume: bool
    overwrite: bool
    dry_run: bool
    everything: bool
    as_json: bool

    def plan(self, request: Request) -> RunPlan:
        """Return the plan of the run."""
        return run_plan_for(request, resume=self.resume, overwrite=self.overwrite)

    def __post_init__(self) -> None:
        if self.resume and self.overwrite:
            raise click.UsageError("--resume continues the run in the directory, --overwrite replaces it: choose one.")
        if self.everything and not self.dry_run:
            raise click.UsageError("--all goes with --dry-run.")
        if self.as_json and not self.dry_run:
            raise click.UsageError("--json goes with --dry-run.")


def start_options(run: Callable[[CommandLine, Start], int]) -> Callable[..., int]:
    """Turn a function of the command line and `Start` into a command's function, with the flags of `Start`."""

    @wraps(run)
    def command(
        words: tuple[str, ...],
        model: str | None,
        files: tuple[str, ...],
        resume: bool,
        overwrite: bool,
        dry_run: bool,
        everything: bool,
        as_json: bool,
        **flags: Any,
    ) -> int:
        return run(CommandLine(words, model, files, flags), Start(resume, overwrite, dry_run, everything, as_json))

    function: Callable[..., int] = command
    for name, help_text in reversed(
        {
            "--resume": "Continue from the newest checkpoint of the run experiment_name, or else of the latest run.",
            "--overwrite": "Replace the run experiment_name, or else the latest run.",
            "--dry-run": "Check the run, and print stages, plugins, values and memory. Train nothing.",
        }.items()
    ):
        function = click.option(name, is_flag=True, help=help_text)(function)
    function = click.option("--json", "as_json", is_flag=True, help="With --dry-run, print JSON, for programs.")(
        function
    )
    text = "With --dry-run, also print default values."
    return click.option("--all", "everything", is_flag=True, help=text)(function)


@click.command(cls=TrainCommand)
@config_options(*PLANNING_FLAGS)
@start_options
def train(line: CommandLine, start: Start) -> int:
    """Train an agent on the environment ENV.

    \b
    Train a tiny model from random weights on this machine:
      rllm train guess
    Choose any part by name, and set any value by its key:
      rllm train guess --estimator rloo --model ./some-hf-directory rllm.rollout.n=16
    Train on questions in a file, with your own reward for the answers:
      rllm train question --data train.jsonl --reward rewards.py:score --model ./some-hf-directory
    Give the model tools, which are Python functions:
      rllm train question --data train.jsonl --reward exact --tools tools.py:add --model ./some-hf-directory
    Train your own agent, with any client for the OpenAI, Anthropic or Google API:
      rllm train question --data train.jsonl --reward exact --agent my_agent.py:solve --model ./some-hf-directory
    Check the run first, without training:
      rllm train guess --dry-run
    Ctrl-C finishes the current step, saves and stops. Continue later:
      rllm train guess --resume
    """
    request = read_request(*line)
    return train_or_check(lambda: start.plan(request), start)


def train_or_check(make_plan: Callable[[], RunPlan], start: Start) -> int:
    """Train, or print the plan with `Start.dry_run`. Return the exit code."""
    if not start.dry_run:
        return _train(make_plan, start)
    plan = make_plan()
    keys = list(plan.composed.origins) if start.everything else chosen_keys(plan)
    if start.as_json:
        data: list[RowSummary | Lengths] = []
        estimate = _check(plan, start, data.extend)
        click.echo(json.dumps(describe_plan(plan, keys, data, estimate), indent=2))
        return 0
    estimate = _check(plan, start, show_data)
    for line in () if estimate is None else estimate.lines():
        click.echo(line)
    show_plan(plan, keys)
    return 0


def _check(plan: RunPlan, start: Start, show: Callable[[Iterable[RowSummary | Lengths]], None]) -> Estimate | None:
    """Run the checks that come before the first step, except those that load a model or use a network.

    `show` receives the content of the run's data sources. Return the estimate of the run.
    """
    from rllm.cli.estimate import estimate_run
    from rllm.planning.lengths import Model, measure_lengths
    from rllm.planning.preflight import check_to_train, load_plugins
    from rllm.planning.rendering_check import check_rendering
    from rllm.runs.run_directory import RunDirectory
    from rllm.training.contexts import run_context
    from rllm.training.setup import load_local_tasks

    train_tasks, val_tasks = load_local_tasks(plan, "train"), load_local_tasks(plan, "val")
    show(check_to_train(plan, train_tasks, val_tasks))
    load_plugins(plan)
    make_renderer = plan.backend.plugin.early_renderer
    found = None if make_renderer is None else make_renderer(run_context(plan, total_steps=1))
    if found is not None:
        check_rendering(plan, found[0], train_tasks or (), val_tasks or ())
    show(measure_lengths(plan, train_tasks, val_tasks, None if found is None else Model(*found)))
    number = None if train_tasks is None else len(train_tasks)
    try:
        RunDirectory.check(plan.config.rllm.trainer, resume=start.resume, overwrite=start.overwrite)
    except ConfigError as error:
        click.echo(f"warning: {error.message} {error.hint}", err=True)
    return estimate_run(plan, number and -(-number // plan.max_batch_tasks(number)))


def _train(make_plan: Callable[[], RunPlan], start: Start) -> int:
    from rllm.cli.summary import show_summary
    from rllm.planning.preflight import check_to_train
    from rllm.training.loop import TrainingLoop
    from rllm.training.setup import load_tasks
    from rllm.training.starting import open_run

    plan, resume = make_plan(), start.resume
    train_tasks, val_tasks = load_tasks(plan, "train"), load_tasks(plan, "val")
    show_data(check_to_train(plan, train_tasks, val_tasks))
    plan, directory = open_run(plan, make_plan, resume=resume, overwrite=start.overwrite)
    try:
        click.echo(
            f"{_doing(plan)} with backend {plan.backend.name}; run directory {directory.path}"
            + _earlier_run(directory, resume=resume)
        )
        click.echo(_recording(plan, directory.path))
        if directory.url is not None:
            click.echo(f"copying the files to {directory.url}")
        trainer = TrainingLoop(plan, directory, train_tasks=train_tasks, val_tasks=val_tasks, resume=resume)
        started = time.monotonic()
        received = asyncio.run(_fit(trainer))
        seconds = time.monotonic() - started
        if trainer.stopped_early and not trainer.has_begun:
            rest = f"{directory.path} is unchanged" if directory.path.exists() else "nothing was written"
            click.echo(f"stopped before anything began; {rest}")
            return 128 + received[0]
        if trainer.stopped_early:
            click.echo(
                f"stopped after {trainer.finished_steps} of {trainer.total_steps} steps, saved in {directory.path}."
                + " The same command with --resume continues from there." * bool(received)
            )
            return 128 + received[0] if received else 0
        show_summary(plan, trainer, val_tasks, seconds)
    finally:
        directory.close()
    return 0


def _earlier_run(directory: RunDirectory, *, resume: bool) -> str:
    """Return the end of a line, about the run that is resumed or replaced."""
    if directory.holds_a_run():
        return f", whose run {'continues' if resume else 'is replaced'}"
    return ", which contains no run to resume, so a new run starts" if resume else ""


def _doing(plan: RunPlan) -> str:
    if plan.rows is None:
        return f"training on {plan.config.rllm.env.name}"
    dataset, doing = plan.train_dataset, plan.rows.activity
    return f"{doing} on {getattr(dataset.params, 'path', dataset.plugin.name)}" if dataset else doing


def _recording(plan: RunPlan, directory: Path) -> str:
    what = "rollout" if plan.rows is None else "example"
    if plan.recorded == "off":
        return f"{what}s are not recorded (rllm.record=off)"
    content = "text, tokens and outcome" if plan.recorded == "tokens" else "outcome"
    return (
        f"recording the {content} of each {what} (rllm.record={plan.recorded}); to look at them: rllm view {directory}"
    )


async def _fit(trainer: TrainingLoop) -> list[int]:
    """Train; returns the signals that were received meanwhile."""
    with stopping_on_signals(trainer) as received:
        await trainer.fit_async()
    return received


@contextmanager
def stopping_on_signals(trainer: TrainingLoop) -> Iterator[list[int]]:
    """Finish the step and save on the first Ctrl-C or SIGTERM, and stop at once on the second. Yield the signals.

    Entered on the event loop.
    """
    received: list[int] = []
    loop = asyncio.get_running_loop()

    def handle(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        trainer.stop()
        doing = "finishing this step, then saving" if trainer.has_begun else "stopping"
        click.echo(f"\n{doing}; once more to stop at once", err=True)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        # The loop's own handler does nothing but wake the loop: a signal just before it waits would be seen when
        # something else wakes it. Ours is called by Python at once, also while an environment keeps the loop busy.
        loop.add_signal_handler(number, _awake)
        signal.signal(number, handle)
    try:
        yield received
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _awake() -> None:
    """Called by the event loop after it woke."""
