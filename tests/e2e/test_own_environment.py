"""docs/how-to/own-environment.md, word for word, in an empty directory."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from documents import blocks, commands, text_of

GUIDE = "docs/how-to/own-environment.md"
FILES = re.findall(r"`(my-number/[\w/.-]+\.py)`", text_of(GUIDE))
OFFLINE = (
    "--no-index",
    "--no-build-isolation",
    "--disable-pip-version-check",
    "--quiet",
    "--no-deps",
    "--target",
    "site",
)
"""Install without requirements, because all of them are installed."""

Rllm = Callable[..., "subprocess.CompletedProcess[str]"]


def apply_diff(code: str, diff: str) -> str:
    """Return the code after a diff: each removed line is replaced by the added line after it, if any."""
    for removed, added in re.findall(r"^-(.*\n)(?:\+(.*\n))?", diff, re.MULTILINE):
        assert code.count(removed) == 1, removed
        code = code.replace(removed, added)
    return code


@pytest.mark.long
def test_the_guide_runs_from_top_to_bottom(
    rllm_here: Rllm, forked_rllm: Rllm, command_server: Any, tmp_path: Path, environ: dict[str, str]
) -> None:
    _, (_, *new), (_, *install), (_, *test), *trainings = map(shlex.split, commands(GUIDE))
    environment_file, options_file, record_file, test_file = (tmp_path / name for name in FILES)
    environment, options, tests = blocks(GUIDE, "python")
    (diff,) = blocks(GUIDE, "diff")

    done = rllm_here(*new)
    assert (done.returncode, done.stderr) == (0, "")
    for file, text in ((environment_file, environment), (options_file, options), (test_file, tests)):
        assert file.exists()
        file.write_text(text)
    record_file.write_text(apply_diff(record_file.read_text(), diff))

    assert install == ["install", "-e", "./my-number[test]"]
    command = (sys.executable, "-m", "pip", "install", *OFFLINE, "./my-number")
    subprocess.run(command, cwd=tmp_path, env=dict(os.environ), check=True, timeout=200)
    environ["PYTHONPATH"] = str(tmp_path / "site")
    tested = command_server.start("pytest", test, tmp_path, environ)
    printed, errors = tested.communicate(timeout=200)
    assert tested.returncode == 0, printed + errors
    assert re.search(r"\d+ passed", printed.splitlines()[-1])

    assert [words[1:3] for words in trainings] == [["train", "my_number"]] * 3
    for words in trainings:
        done = forked_rllm(*words[1:], *(() if "--dry-run" in words else ("rllm.rollout.n_val=1",)))
        assert done.returncode == 0, done.stderr
    (metrics,) = tmp_path.glob("runs/*/*/metrics.jsonl")
    steps = [step for step in map(json.loads, metrics.read_text().splitlines()) if "actor/loss" in step]
    assert len(steps) == 3
    assert all(1.0 <= step["env/guesses"] <= 3.0 for step in steps)
