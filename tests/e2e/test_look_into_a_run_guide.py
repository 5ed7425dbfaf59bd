"""docs/how-to/look-into-a-run.md, word for word, from top to bottom in an empty directory."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GUIDE = (Path(__file__).parents[2] / "docs" / "how-to" / "look-into-a-run.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    rllm (.*)$", GUIDE, re.MULTILINE)
PYTHON = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
SHOWN = re.findall(r"^```text\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def address_of(words: list[str], directory: Path, environ: dict[str, str]) -> str:
    """Return the first output of a command that serves."""
    command = [sys.executable, "-m", "rllm", *words]
    with subprocess.Popen(command, cwd=directory, env=environ, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        server.terminate()
    return said


@pytest.mark.long
@pytest.mark.usefixtures("with_view")
def test_the_guide_runs_from_top_to_bottom(
    rllm_here: Any, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = {}
    for command in COMMANDS:
        words = shlex.split(command)
        if words == ["view"]:
            printed[command] = address_of(words, tmp_path, environ)
            continue
        done = rllm_here(*words)
        assert done.returncode == 0, (command, done.stderr)
        printed[command] = done.stdout

    assert printed["view"].startswith("open http://127.0.0.1:")
    of_token = printed["why runs/rllm-training/default 2 guess-14:6 --token 1"].splitlines()
    (shown,) = SHOWN
    assert {line.split(":")[0] for line in shown.splitlines()} <= {line.split(":")[0] for line in of_token}
    by_file = (tmp_path / "run.html").read_bytes()
    assert (tmp_path / "runs/rllm-training/default/report.html").stat().st_size > 50_000
    (tmp_path / "run.html").unlink()
    monkeypatch.chdir(tmp_path)
    (code,) = PYTHON
    exec(compile(code, "guide", "exec"), {})
    assert (tmp_path / "run.html").read_bytes() == by_file


def test_the_keys_in_the_guide_are_those_of_the_page() -> None:
    from rllm_view.pages.assets import assets

    page = assets()["episode.js"].body.decode()
    (table,) = re.findall(r"^\| key \|.*?\n\n", GUIDE, re.MULTILINE | re.DOTALL)
    letters = re.findall(r"`([a-z\[\]])`", table)
    assert len(letters) == 10
    assert [key for key in letters if f'["{key}",' not in page] == []
