"""The notebook of a first run, and the tests of a reward."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from documents import blocks, commands, text_of
from expecting import check_values
from workspace import ROOT

TEST_A_REWARD = "docs/how-to/test-a-reward.md"


async def run_notebook(file: Path) -> dict[str, Any]:
    """Run the cells as a notebook does, on an event loop. Return the names that they define."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            code = compile("".join(cell["source"]), file.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if inspect.isawaitable(waiting := eval(code, names)):
                await waiting
    return names


@pytest.mark.smoke
@pytest.mark.usefixtures("nothing_stays_registered")
def test_notebook_learns_its_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLLM_BLOCK_PLUGINS", "rllm-view")
    names = asyncio.run(run_notebook(ROOT / "examples" / "first_run.ipynb"))
    assert names["rewards"][-1] > names["rewards"][0] + 0.2
    shown = capsys.readouterr().out.splitlines()[-len(names["ROWS"]) :]
    assert all(" reward " in line for line in shown)


@pytest.mark.smoke
@pytest.mark.usefixtures("with_view")
def test_a_reward_is_tested_as_the_page_shows(rllm_here: Callable[..., Any], tmp_path: Path) -> None:
    *files, leaky, fixed = blocks(TEST_A_REWARD, "python")
    for name, code in zip(("rewards.py", "test_rewards.py"), files, strict=True):
        (tmp_path / name).write_text(code)
    check_values(text_of("benchmarks/leaky_reward.py"), leaky, fixed)
    (tmp_path / "train.jsonl").write_text(blocks("README.md", "json")[0])
    check, tests, *others = (shlex.split(command) for command in commands(TEST_A_REWARD) if "leak" not in command)
    passed = subprocess.run([sys.executable, "-m", *tests], capture_output=True, text=True, timeout=200)
    assert passed.returncode == 0, passed.stdout
    printed = [rllm_here(*command[1:]) for command in (check, *others)]
    assert [done.stderr for done in printed if done.returncode] == []
    check_values(printed[0].stdout, "72 responses to 2 rows", "rejected right answers: 0.0%", "accepted exploits: 0.0%")
    check_values(printed[2].stdout, "reward.exact ", "reward.python ")
    check_values(printed[-1].stdout, "user: 1+1", "(python 0", "group: 1:agent: 8 trajectories")
