"""The status that a run's process writes, and its reading after the process is gone."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rllm.runs.run_status import record_status
from rllm_core.errors import ConfigError
from rllm_record.run_files import read_status

RUNS_FOREVER = """
import sys, time
from rllm.runs.run_directory import RunDirectory
from rllm.runs.run_status import record_status
from rllm_core.schema.run_sections import TrainerSection
directory = RunDirectory.open(TrainerSection(output_dir=sys.argv[1], project_name="p", experiment_name="e"))
with record_status(directory.path, lambda: False):
    print("running", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("error", "is_stopped", "expected"),
    [
        (None, False, ("finished", "")),
        (None, True, ("stopped", "")),
        (KeyboardInterrupt(), True, ("stopped", "")),
        (asyncio.CancelledError(), False, ("stopped", "")),
        (ConfigError("code", "It is\nfull.", "Make room."), False, ("failed", "It is full.")),
        (ValueError("no"), False, ("failed", "ValueError: no")),
    ],
)
def test_status_shows_how_a_run_ended(
    tmp_path: Path, error: BaseException | None, is_stopped: bool, expected: tuple[str, str]
) -> None:
    try:
        with record_status(tmp_path, lambda: is_stopped):
            if error is not None:
                raise error
    except BaseException as raised:  # noqa: BLE001
        assert raised is error

    found = read_status(tmp_path)
    assert found is not None
    assert (found.status, found.reason) == expected
    assert found.ended is not None
    with record_status(tmp_path, lambda: False):
        resumed = read_status(tmp_path)
    assert resumed is not None
    assert (resumed.started, resumed.ended, resumed.reason) == (found.started, None, "")


def test_killed_process_and_copy_are_not_running(tmp_path: Path) -> None:
    run = tmp_path / "p" / "e"
    with subprocess.Popen([sys.executable, "-c", RUNS_FOREVER, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        shutil.copytree(run, tmp_path / "copy")
        found = [read_status(run), read_status(tmp_path / "copy")]
        process.kill()
    found.append(read_status(run))

    assert [each and each.status for each in found] == ["running", "killed", "killed"]


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "[]",
        '{"status": "running"}',
        '{"status": "running", "started": "no"}',
        '{"status": "flies", "started": "2026-01-01"}',
        '{"status": "running", "started": "2026-01-01", "reason": 7}',
    ],
)
def test_unreadable_status_is_none(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "status.json").write_text(content)

    assert read_status(tmp_path) is None
