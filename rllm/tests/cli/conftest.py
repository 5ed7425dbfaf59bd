"""``rllm`` as users run it: in its own process, with plugins installed in a directory on its path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from written_distribution import write_distribution

PLUGIN = """
from pydantic import Field
from rllm_core.contracts.estimator import Advantages, EstimatorPlugin
from rllm_core.contracts.params import Params
from rllm_core.plugins import hookimpl

class ScaleParams(Params):
    scale: float = Field(1.5, gt=0, description="Multiplies every advantage.")
    target: str

def raw(inputs, params):
    return Advantages(values=inputs.rewards)

@hookimpl
def rllm_estimators():
    return [
        EstimatorPlugin(
            name="an_estimator_with_a_name_too_long_for_eighty_columns_before_its_summary",
            summary="The reward itself, times a constant, which is as simple as an estimator can be.",
            load_params=lambda: ScaleParams,
            load=lambda: raw,
            level="token",
            needs=frozenset({"values"}),
            deprecated="choose grpo",
        )
    ]
"""

COMMAND = """
import click

@click.command()
@click.argument("words", nargs=-1)
@click.pass_obj
def act(debug, words):
    click.echo(f"acting on {' '.join(words)}, debug {debug}")
    return len(words)
"""


@pytest.fixture
def install(tmp_path: Path) -> Callable[[str, str], None]:
    def install(distribution: str, code: str = PLUGIN) -> None:
        write_distribution(tmp_path, distribution, code)

    return install


@pytest.fixture
def install_command(tmp_path: Path) -> Callable[..., None]:
    """Installs a distribution that adds a command to ``rllm``; by default one that prints its words."""

    def install(
        distribution: str, command: str, code: str = COMMAND, attribute: str = "act", group: str = "rllm.commands"
    ) -> None:
        write_distribution(tmp_path, distribution, code, points=f"[{group}]\n{command} = {{module}}:{attribute}\n")

    return install
