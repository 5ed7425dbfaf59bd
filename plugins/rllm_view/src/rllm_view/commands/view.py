"""`rllm view`: the pages of runs, in the browser."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.argument("runs", nargs=-1, metavar="[RUN]...", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--port", default=0, metavar="N", type=click.IntRange(0, 65535), help="Port to listen on. 0 means any free port."
)
@click.option("--announce", type=click.Path(path_type=Path, dir_okay=False), help="File to write the URL to, as JSON.")
@click.option(
    "--static", type=click.Path(path_type=Path, dir_okay=False), metavar="OUT", help="Write one file instead."
)
@click.option(
    "--episodes",
    default=100,
    show_default=True,
    type=click.IntRange(min=0),
    help="Maximum episodes per run in that file.",
)
def view(runs: tuple[Path, ...], port: int, announce: Path | None, static: Path | None, episodes: int) -> None:
    """Inspect runs in the browser: curves, steps, groups, and each token down to its gradient.

    RUN is a run directory or a directory of runs (default: runs). Only this machine can connect, and only with the key
    in the printed URL. RLLM_VIEW_KEY sets your own key. From a different machine: ssh -L 8000:127.0.0.1:PORT HOST.

    \b
    Examples:
      rllm view
      rllm view runs/rllm-training/guess-1 --port 8000
      rllm view runs/rllm-training/guess-1 --static run.html
    """
    if static is not None:
        from rllm_view.static import write_page

        write_page(runs or (Path("runs"),), static, episodes)
        click.echo(f"wrote {static}")
        return
    from rllm_view.serving import KEY_VARIABLE, serve

    key = os.environ.get(KEY_VARIABLE) or secrets.token_urlsafe(18)

    def ready(url: str) -> None:
        click.echo(f"open {url}\nCtrl-C ends it")

    raise SystemExit(serve(runs or (Path("runs"),), key, ready, port=port, announcement=announce))
