"""docs/how-to/real-models.md, unchanged, in an empty directory."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GUIDE = (Path(__file__).parents[2] / "docs" / "how-to" / "real-models.md").read_text(encoding="utf-8")


def _block(language: str) -> str:
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, flags=re.MULTILINE | re.DOTALL)
    return str(text)


@pytest.mark.long
def test_the_commands_of_the_guide_work_one_after_the_other(
    forked_rllm: Callable[..., Any], command_server: Any, environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "make_model.py").write_text(_block("python"))
    (tmp_path / "real.yaml").write_text(_block("yaml"))
    made = command_server.start("make_model", (), tmp_path, environ)
    _, errors = made.communicate()
    assert made.returncode == 0, errors
    commands = re.findall(r"^    rllm (.*)$", GUIDE, re.MULTILINE)
    said = []
    for command in commands:
        done = forked_rllm(*shlex.split(command))
        assert done.returncode == 0, f"{command}: {done.stderr}"
        said.append(done.stdout)
    planned, trained, evaluated, exported = said
    assert "Memory, at most:" in planned
    assert "2 steps in" in trained
    assert "guess" in evaluated
    assert exported == "merged is in merged\n"
    checkpoint = tmp_path / "runs/rllm-training/real/checkpoints/latest/backend/model"
    assert (checkpoint / "adapter_model.safetensors").exists()
    assert (tmp_path / "merged" / "model.safetensors").exists()
