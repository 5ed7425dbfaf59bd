"""`rllm gateway`: a gateway that outlives runs, and what its store holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import click

from rllm.cli import config_options, read_request
from rllm_core.errors import ConfigError
from rllm_gateway.places import SHARED

PORT = 4000
SECONDS_OF_A_DAY = 86400.0
CommandT = TypeVar("CommandT", bound=Callable[..., Any])
TIME = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M:%S%z"])

STORE_OPTION = click.option(
    "--store",
    metavar="PATH",
    help=f"Run folder, or store of calls. Default: the store of the run runs/NAME for --run NAME, else {SHARED}.",
)
RUN_OPTION = click.option("--run", metavar="NAME", help="Sessions of this run alone.")


def selection_options(command: CommandT) -> CommandT:
    """Add what says which sessions; see `Selection`."""
    for option in (
        click.option("--before", type=TIME, metavar="TIME", help="Sessions that were opened earlier."),
        click.option("--since", type=TIME, metavar="TIME", help="Sessions that were opened then or later."),
        click.option("--session", "sessions", multiple=True, metavar="ID", help="This session; may be repeated."),
        RUN_OPTION,
        STORE_OPTION,
    ):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def gateway() -> None:
    """Agents in anybody's code: serve a gateway, and see what they asked."""


@gateway.command()
@config_options("backend", "profile", "seed")
@click.option("--store", default=SHARED, show_default=True, type=click.Path(dir_okay=False), help="Store of calls.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address that agents reach.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option(
    "--run-port",
    default=PORT + 1,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Where runs of this machine attach, without --model; 0 takes a free one.",
)
@click.option(
    "--run", default="deployed", show_default=True, metavar="NAME", help="Name of the sessions, with --model."
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of the admin token that runs attach and sessions are opened with; made at first use. "
    "Default: ~/.rllm/gateway.token",
)
@click.option("--announce", type=click.Path(dir_okay=False, path_type=Path), help="File that gets the URL as JSON.")
def serve(words: tuple[str, ...], model: str | None, files: tuple[str, ...], **options: Any) -> int:
    """Serve agents, for runs or with a model.

    Without --model it is a gateway that outlives runs: calls wait until a run attaches with
    rllm.sdk.proxy.mode=external. With --model it serves a model to deployed agents, which open sessions by a request;
    replies are sampled as in training. Ctrl-C stops it; what was answered is in the store.

    \b
    A model to agents, with the config of the run that trained it:
      rllm gateway serve --model runs/rllm-training/default
    """
    from rllm_gateway.serving_command import serve_model, serve_runs

    flags = {name: options.pop(name) for name in ("backend", "profile", "seed")}
    run, run_port = options.pop("run"), options.pop("run_port")
    if model is not None:
        from rllm.evaluation.words import checkpoint_of

        return serve_model(read_request(words, checkpoint_of(model), files, flags), run=run, **options)
    if words or files or any(value is not None for value in flags.values()):
        raise click.UsageError("Words of a configuration are for a model: name one with --model.")
    return serve_runs(run_port=run_port, **options)


@gateway.command()
@selection_options
def sessions(store: str | None, **selected: Any) -> None:
    """List sessions: id, run, calls, ending, time."""
    from rllm_gateway.listing import Selection, opened, session_lines, sessions_of

    with opened(store, selected["run"]) as reader:
        found = sessions_of(reader, Selection(**selected))
        for line in session_lines(found):
            click.echo(line)
    if not found:
        click.echo("The store has no session.", err=True)


@gateway.command()
@STORE_OPTION
@click.argument("session")
def show(store: str | None, session: str) -> None:
    """Show what was said in a session."""
    from rllm_gateway.listing import call_lines, opened, session_named

    with opened(store) as reader:
        for line in call_lines(session_named(reader, session)):
            click.echo(line)


@gateway.command()
@selection_options
@click.argument("file", type=click.File("wb"), default="-")
def export(store: str | None, file: BinaryIO, **selected: Any) -> None:
    """Write calls as JSON Lines.

    Each has its messages, token ids and log-probs. Without FILE they go to standard output.
    """
    from rllm_gateway.listing import Selection, exported, opened

    with opened(store, selected["run"]) as reader:
        for line in exported(reader, Selection(**selected)):
            file.write(line + b"\n")


@gateway.command()
@selection_options
@click.option("--with-open", is_flag=True, help="Sessions that have not ended too.")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def episodes(store: str | None, with_open: bool, directory: Path, **selected: Any) -> None:
    """Write sessions as episodes.

    `rllm rescore FOLDER` and `rllm train --stored FOLDER` read them. Sessions of validation are left out.
    """
    from rllm_gateway.exporting import export_episodes
    from rllm_gateway.listing import Selection, counted, opened

    with opened(store, selected["run"]) as reader:
        done = export_episodes(reader, Selection(**selected), with_open, directory.expanduser())
    rollouts, tasks = counted(done.episodes, "attempt"), counted(done.tasks, "task")
    click.echo(f"{rollouts} at {tasks} in {directory}, {done.without_reward} without a reward")
    for reason, sessions in done.left_out.items():
        click.echo(f"{counted(sessions, 'session')} left out: {reason}")


@gateway.command()
@STORE_OPTION
@RUN_OPTION
@click.option("--days", type=click.FloatRange(0), help="Sessions that were opened longer ago.")
def prune(store: str | None, run: str | None, days: float | None) -> None:
    """Delete old sessions, or those of a run."""
    from rllm_gateway.calls import CallStore
    from rllm_gateway.listing import counted
    from rllm_gateway.places import named_store

    if run is None and days is None:
        raise ConfigError(
            "nothing-selected", "Nothing says which sessions to delete.", "Give --run NAME, or --days N, or both."
        )
    before = None if days is None else time.time() - days * SECONDS_OF_A_DAY
    with CallStore.open(named_store(store, run)) as calls:
        click.echo(f"{counted(calls.prune(run=run, before=before), 'session')} deleted")
