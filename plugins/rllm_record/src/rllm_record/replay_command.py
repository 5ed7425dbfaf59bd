"""`rllm replay`: repeat the updates of a run from its journal, and compare the weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rllm_record.journal.replay import Compared


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
def replay(run: Path) -> None:
    """Repeat the updates of RUN from its journal, and compare the weights.

    RUN is a run directory with a journal of the whole run: rllm.trainer.observers=[{name: journal, keep: run}]. The
    workflow runs again with the responses in the journal, so nothing is sampled. RUN is only read. Exit code 1 means
    that the weights of a checkpoint differ.

    \b
      rllm train guess 'rllm.trainer.observers=[{name: journal, keep: run}]' rllm.trainer.save_freq=20
      rllm replay runs/rllm-training/guess-1
    """
    from rllm_record.journal.replay import replay as replayed

    checkpoints = replayed(run.expanduser(), lambda compared: click.echo(_line(compared)))
    differing = [compared.step for compared in checkpoints if compared.differing]
    if differing:
        click.echo(f"checkpoints with other weights: {len(differing)}, the first after {differing[0]} steps")
        raise SystemExit(1)
    click.echo(f"checkpoints: {len(checkpoints)}, all with the same weights")


def _line(compared: Compared) -> str:
    after = f"after {compared.step} steps"
    return f"{after}: other {', '.join(compared.differing)}" if compared.differing else f"{after}: the same weights"
