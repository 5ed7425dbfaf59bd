"""A run names the part that never answers, in a real process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "tools" / "stuck_runs.py"


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("part", "named"),
    [
        ("environment", "the environment TwoTurns.step"),
        ("tool", "the tool search"),
        ("reward", "the reward slow"),
        ("sandbox", "the sandbox tests"),
        ("model", "the model"),
    ],
)
def test_terminal_names_the_stuck_part(part: str, named: str, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), part, "1"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as run:
        assert run.stderr is not None
        warning = next((line for line in run.stderr if "has waited" in line), "")
        run.kill()
    assert warning.startswith("warning: rollout 't2:")
    assert ", turn 1, has waited " in warning
    assert f" s for {named}" in warning
