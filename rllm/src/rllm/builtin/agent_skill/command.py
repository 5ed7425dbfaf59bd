"""`rllm skill`: print instructions for coding agents, or write them where agents search for skills."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

from rllm_core.plugins.discovery import PROGRAM

NAME = "rllm"
FILE = "SKILL.md"


@click.command()
@click.option(
    "--into", type=click.Path(path_type=Path), metavar="DIRECTORY", help="Write it into a directory of skills."
)
def skill(into: Path | None) -> None:
    """Print instructions for coding agents.

    They contain the commands, the keys that change results, how to read a failed run, and how to write a plugin.

    \b
    Examples:
      rllm skill
      rllm skill --into .agents/skills       (writes .agents/skills/rllm/SKILL.md)
      rllm skill --into .claude/skills
    """
    text = files(PROGRAM).joinpath(".agents", "skills", NAME, FILE).read_text(encoding="utf-8")
    if into is None:
        click.echo(text, nl=False)
        return
    target = into.expanduser() / NAME / FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    click.echo(f"Wrote {target}.")
