"""``rllm`` as users run it: a process of its own, with plugins installed in a folder on its path."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PLUGIN = """
from pydantic import Field
from rllm_core.contracts.estimator import Advantages, EstimatorPlugin
from rllm_core.contracts.plugin import Params
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
            name="an_estimator_with_a_name_too_long_for_eighty_columns_beside_its_summary",
            summary="The reward itself, times a constant, which is as simple as an estimator can be.",
            params=ScaleParams,
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

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def install(tmp_path: Path) -> Callable[[str, str], None]:
    def install(distribution: str, code: str = PLUGIN) -> None:
        module = distribution.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[rllm.plugins]\n{distribution} = {module}\n")

    return install


@pytest.fixture
def install_command(tmp_path: Path) -> Callable[..., None]:
    """Installs a distribution that adds a command to ``rllm``; by default one that prints its words."""

    def install(distribution: str, command: str, code: str = COMMAND, attribute: str = "act") -> None:
        module = distribution.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[rllm.commands]\n{command} = {module}:{attribute}\n")

    return install


@pytest.fixture
def rllm(tmp_path: Path) -> Run:
    """Runs ``rllm`` with warnings as errors; `program` replaces it, for looking at the process from inside."""

    def run(*arguments: str, program: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        program = program or "import sys; from rllm_core.cli.main import main; sys.exit(main())"
        blocked = {"RLLM_BLOCK_PLUGINS": "rllm-local,rllm-envs", "RLLM_DEBUG": "", "COLUMNS": "80"}
        path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", program, *arguments],
            env={**os.environ, **blocked, "PYTHONPATH": path, **environ},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run
