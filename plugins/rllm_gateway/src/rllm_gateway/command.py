"""`rllm gateway`: serve a gateway that outlives runs, and read the model calls in its store."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from rllm_core.errors import ConfigError
from rllm_gateway.serving.store_paths import SHARED, named_store

PORT = 4000
SECONDS_OF_A_DAY = 86400.0

STORE_OPTION = click.option(
    "--store",
    metavar="PATH",
    help=f"A run directory or a store file. Default: the store of the run runs/NAME for --run NAME, else {SHARED}.",
)
RUN_OPTION = click.option("--run", metavar="NAME", help="Only sessions of this run.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def gateway() -> None:
    """Serve a gateway to your own agents, and read their model calls.

    \b
    Read the sessions of a training run:
      rllm gateway sessions --store runs/rllm-training/guess-1
      rllm gateway show SESSION --store runs/rllm-training/guess-1
    """


@gateway.command()
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
    help="Port at which runs on this machine attach. 0: any free port.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with the admin token, which runs need to attach. It is created if it does not exist. "
    "Default: ~/.rllm/gateway.token",
)
@click.option("--announce", type=click.Path(dir_okay=False, path_type=Path), help="Write the URL to this file as JSON.")
def serve(**options: Any) -> int:
    """Serve agents of runs, and outlive the runs.

    Calls wait until a run attaches with rllm.sdk.proxy.mode=external. Press Ctrl-C to stop the gateway. Every answered
    call is in the store.
    """
    from rllm_gateway.serving.serving_command import serve_runs

    return serve_runs(**options)


@gateway.command()
@STORE_OPTION
@RUN_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def sessions(store: str | None, run: str | None, as_json: bool) -> None:
    """List sessions with id, run, number of calls, how they ended, and time.

    \b
    Examples:
      rllm gateway sessions --store runs/rllm-training/guess-1
      rllm gateway sessions --run rllm-training/guess-1
    """
    from rllm_gateway.call_listing import describe_session, session_lines, sessions_of
    from rllm_gateway.calls import CallReader

    with CallReader.open(named_store(store, run)) as reader:
        found = sessions_of(reader, run)
    if as_json:
        click.echo(json.dumps([describe_session(each) for each in found], indent=2))
        return
    for line in session_lines(found):
        click.echo(line)
    if not found:
        click.echo("The store has no session.", err=True)


@gateway.command()
@STORE_OPTION
@click.argument("session")
def show(store: str | None, session: str) -> None:
    """Print the conversation of a session. `rllm gateway sessions` lists their ids."""
    from rllm_gateway.call_listing import call_lines
    from rllm_gateway.calls import CallReader

    with CallReader.open(named_store(store)) as reader:
        for line in call_lines(reader.session(session)):
            click.echo(line)


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
    from rllm_gateway.call_listing import format_count
    from rllm_gateway.calls import CallStore

    if run is None and days is None:
        raise ConfigError(
            "nothing-selected", "No sessions are selected for deletion.", "Add --run NAME, or --days N, or both."
        )
    before = None if days is None else time.time() - days * SECONDS_OF_A_DAY
    with CallStore.open(named_store(store, run)) as calls:
        click.echo(f"{format_count(calls.prune(run=run, before=before), 'session')} deleted")
