"""Pages that show the output of runs: look into a run, debug learning, and the metrics."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from documents import blocks, commands, text_of
from recorded_runs import RecordedRuns

LOOK, DEBUG = "docs/how-to/look-into-a-run.md", "docs/how-to/debug-learning.md"


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
    for command in commands(LOOK):
        words = shlex.split(command)[1:]
        if words == ["view"]:
            assert address_of(words, tmp_path, environ).startswith("open http://127.0.0.1:")
            continue
        # Step 2 is the last one that the guide looks into.
        done = rllm_here(*(word.replace("total_batches=6", "total_batches=3") for word in words))
        assert done.returncode == 0, (command, done.stderr)
        printed[command] = done.stdout

    of_token = printed["rllm why runs/rllm-training/guess-1 2 guess-14:6 --token 1"].splitlines()
    (shown,) = blocks(LOOK, "text")
    assert {line.split(":")[0] for line in shown.splitlines()} <= {line.split(":")[0] for line in of_token}
    by_file = (tmp_path / "run.html").read_bytes()
    assert (tmp_path / "runs/rllm-training/guess-1/report.html").stat().st_size > 50_000
    (tmp_path / "run.html").unlink()
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(LOOK, "python")
    exec(compile(code, "guide", "exec"), {})
    assert (tmp_path / "run.html").read_bytes() == by_file


@pytest.mark.long
@pytest.mark.usefixtures("with_view")
def test_metrics_show_which_run_has_a_signal(
    rllm_here: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], environ: dict[str, str]
) -> None:
    (tmp_path / "train.jsonl").write_text(blocks(DEBUG, "json")[0])
    (tmp_path / "rewards.py").write_text(blocks(DEBUG, "python")[0])
    for command in commands(DEBUG):
        done = rllm_here(*shlex.split(command)[1:])
        assert done.returncode == 0, (command, done.stderr)
    exec(blocks(DEBUG, "python")[1], {})
    printed, shown = capsys.readouterr().out.splitlines(), blocks(DEBUG, "text")[0].splitlines()
    assert printed[:3] == shown[:3]
    assert len(printed) == len(shown)
    # Other processors round the values of the second run differently.
    assert all("actor/grad_norm=0" not in line for line in printed[3:])


@pytest.mark.long
def test_metrics_of_the_page_exist(recorded_runs: RecordedRuns) -> None:
    lines = (recorded_runs.path("synchronous") / "metrics.jsonl").read_text().splitlines()
    rows = re.findall(r"^\| `([^`]+)`", text_of("docs/how-to/read-metrics.md"), re.MULTILINE)
    assert rows and set(rows) <= set(json.loads(lines[0]))


def test_keys_in_the_guide_exist_on_the_page() -> None:
    from rllm_view.pages import assets

    page = assets()["episode.js"].body.decode()
    (table,) = re.findall(r"^\| key \|.*?\n\n", text_of(LOOK), re.MULTILINE | re.DOTALL)
    letters = re.findall(r"`([a-z\[\]])`", table)
    assert len(letters) == 10
    assert [key for key in letters if f'["{key}",' not in page] == []
