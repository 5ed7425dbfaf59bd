"""docs/how-to/real-models.md, unchanged, in an empty directory."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from documents import blocks, commands

GUIDE = "docs/how-to/real-models.md"


@pytest.mark.long
def test_commands_of_the_guide_work_in_order(
    forked_rllm: Callable[..., Any], command_server: Any, environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "make_model.py").write_text(blocks(GUIDE, "python")[0])
    (tmp_path / "real.yaml").write_text(blocks(GUIDE, "yaml")[0])
    made = command_server.start("make_model", (), tmp_path, environ)
    _, errors = made.communicate()
    assert made.returncode == 0, errors
    said = []
    for command in commands(GUIDE):
        if command.startswith("rllm "):
            done = forked_rllm(*shlex.split(command)[1:])
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
