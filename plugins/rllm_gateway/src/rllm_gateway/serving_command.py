"""`rllm gateway serve`, in its two forms."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from rllm.cli import Request
from rllm_gateway.admin_token import TOKEN_FILE, admin_token

WORKFLOW = {"rllm.workflow.name": "agent"}
"""What plays: keys that agents of others act on have an effect."""


def serve_runs(store: str, host: str, port: int, run_port: int, token_file: Path | None, announce: Path | None) -> int:
    """Serve to runs that attach. Returns the exit code."""
    from rllm_gateway.serve import ServeOptions, serve

    file = token_file or TOKEN_FILE
    options = ServeOptions(
        store=Path(store).expanduser(),
        token=admin_token(file),
        host=host,
        port=port,
        run_port=run_port,
        announcement=announce,
    )

    def ready(url: str, for_runs: int) -> None:
        _say(f"agents: {url}; runs: port {for_runs}, with the token in {file.expanduser()}", f"store: {options.store}")

    return serve(options, ready)


def serve_model(
    request: Request,
    store: str,
    host: str,
    port: int,
    run: str,
    token_file: Path | None,
    announce: Path | None,
) -> int:
    """Serve a model to agents that open sessions. Returns the exit code."""
    from rllm.evaluation.plans import plan_to_play
    from rllm_gateway.checks import check_serving
    from rllm_gateway.deploying import DeployOptions, deploy

    # Before anything of the model is read.
    check_serving(Path(store).expanduser(), host, port)
    file = (token_file or TOKEN_FILE).expanduser()
    admin_token(file)
    play = plan_to_play(replace(request, choices={**request.choices, **WORKFLOW}))
    options = DeployOptions(
        store=str(Path(store).expanduser()),
        token_file=file,
        host=host,
        port=port,
        run=run,
        announcement=announce,
    )

    def ready(url: str) -> None:
        config = f"the config of {play.run}" if play.run else "no run's config"
        _say(
            f"serving {play.model} with {config}",
            f"sessions: POST {url}/sessions with the token in {file}, stored as run {run}",
            f"store: {options.store}",
        )

    return deploy(play.plan, options, ready)


def _say(*lines: str) -> None:
    for line in lines:
        click.echo(line)
    sys.stdout.flush()
