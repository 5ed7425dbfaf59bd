"""`rllm gateway`: serve a gateway that outlives runs, and read the model calls in its store."""

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
    help=f"A run folder or the file of a store. Default: the store of the run runs/NAME for --run NAME, else {SHARED}.",
)
RUN_OPTION = click.option("--run", metavar="NAME", help="Only sessions of this run.")


def selection_options(command: CommandT) -> CommandT:
    """Add the options that select sessions. See `Selection`."""
    for option in (
        click.option("--before", type=TIME, metavar="TIME", help="Only sessions opened before this time."),
        click.option("--since", type=TIME, metavar="TIME", help="Only sessions opened at this time or later."),
        click.option("--session", "sessions", multiple=True, metavar="ID", help="Only this session. May be repeated."),
        RUN_OPTION,
        STORE_OPTION,
    ):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def gateway() -> None:
    """Serve a gateway to your own agents, and read their model calls.

    \b
    Serve a model to an agent that is already deployed, then train on its sessions:
      rllm gateway serve --model ./some-hf-folder
      rllm gateway episodes sessions
      rllm train --stored sessions --model ./some-hf-folder
    Read the sessions of a training run:
      rllm gateway sessions --store runs/rllm-training/default
      rllm gateway show SESSION --store runs/rllm-training/default
    """


@gateway.command()
@config_options("backend", "profile", "seed")
@click.option(
    "--store", default=SHARED, show_default=True, type=click.Path(dir_okay=False), help="File that stores model calls."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on for agents.")
@click.option(
    "--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="Port for agents. 0: any free port."
)
@click.option(
    "--run-port",
    default=PORT + 1,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port at which runs on this machine attach. Only without --model. 0: any free port.",
)
@click.option(
    "--run",
    default="deployed",
    show_default=True,
    metavar="NAME",
    help="Run name of the sessions, with --model.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with the admin token, which is needed to attach a run and to open a session. It is created if it does "
    "not exist. Default: ~/.rllm/gateway.token",
)
@click.option("--announce", type=click.Path(dir_okay=False, path_type=Path), help="Write the URL to this file as JSON.")
def serve(words: tuple[str, ...], model: str | None, files: tuple[str, ...], **options: Any) -> int:
    """Serve agents, for runs or with a model.

    Without --model, the gateway outlives runs. Calls wait until a run attaches with rllm.sdk.proxy.mode=external.
    With --model, it serves a model to deployed agents, which open a session with a request. Responses are sampled as
    in training. Press Ctrl-C to stop it. Every answered call is in the store.

    \b
    Serve a model with the config of the run that trained it:
      rllm gateway serve --model runs/rllm-training/default
    """
    from rllm_gateway.serving_command import serve_model, serve_runs

    flags = {name: options.pop(name) for name in ("backend", "profile", "seed")}
    run, run_port = options.pop("run"), options.pop("run_port")
    if model is not None:
        from rllm.evaluation.words import find_latest_checkpoint

        return serve_model(read_request(words, find_latest_checkpoint(model), files, flags), run=run, **options)
    if words or files or any(value is not None for value in flags.values()):
        raise click.UsageError("Config files and KEY=VALUE settings need a model. Set one with --model.")
    return serve_runs(run_port=run_port, **options)


@gateway.command()
@selection_options
def sessions(store: str | None, **selected: Any) -> None:
    """List sessions with id, run, number of calls, how they ended, and time.

    \b
    Examples:
      rllm gateway sessions --store runs/rllm-training/default
      rllm gateway sessions --run deployed --since 2026-11-01
    """
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
    """Print the conversation of a session. `rllm gateway sessions` lists their ids."""
    from rllm_gateway.listing import call_lines, opened

    with opened(store) as reader:
        for line in call_lines(reader.session(session)):
            click.echo(line)


@gateway.command()
@selection_options
@click.argument("file", type=click.File("wb"), default="-")
def export(store: str | None, file: BinaryIO, **selected: Any) -> None:
    """Write model calls as JSON Lines.

    Each line has a call's messages, token ids and log-probs. Without FILE they are written to standard output.

    \b
    Example:
      rllm gateway export calls.jsonl --store runs/rllm-training/default
    """
    from rllm_gateway.listing import Selection, exported, opened

    with opened(store, selected["run"]) as reader:
        for line in exported(reader, Selection(**selected)):
            file.write(line + b"\n")


@gateway.command()
@selection_options
@click.option("--with-open", is_flag=True, help="Include sessions that have not ended.")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def episodes(store: str | None, with_open: bool, directory: Path, **selected: Any) -> None:
    """Write sessions as episodes.

    Validation sessions are not written. Score the episodes, or train on them:

    \b
      rllm gateway episodes sessions --run deployed
      rllm rescore sessions --reward exact --save scored
      rllm train --stored scored --model ./some-hf-folder
    """
    from rllm_gateway.exporting import export_episodes
    from rllm_gateway.listing import Selection, counted, opened

    with opened(store, selected["run"]) as reader:
        done = export_episodes(reader, Selection(**selected), with_open, directory.expanduser())
    rollouts, tasks = counted(done.episodes, "attempt"), counted(done.tasks, "task")
    click.echo(f"{rollouts} at {tasks} in {directory}, {done.without_reward} without a reward")
    for reason, sessions in done.left_out.items():
        click.echo(f"{counted(sessions, 'session')} not written: {reason}")


@gateway.command()
@STORE_OPTION
@RUN_OPTION
@click.option("--days", type=click.FloatRange(0), help="Only sessions opened more than this many days ago.")
def prune(store: str | None, run: str | None, days: float | None) -> None:
    """Delete old sessions, or all sessions of a run.

    \b
    Example:
      rllm gateway prune --days 30
    """
    from rllm_gateway.calls import CallStore
    from rllm_gateway.listing import counted
    from rllm_gateway.places import named_store

    if run is None and days is None:
        raise ConfigError(
            "nothing-selected", "No sessions are selected for deletion.", "Add --run NAME, or --days N, or both."
        )
    before = None if days is None else time.time() - days * SECONDS_OF_A_DAY
    with CallStore.open(named_store(store, run)) as calls:
        click.echo(f"{counted(calls.prune(run=run, before=before), 'session')} deleted")
