"""What a run leaves behind, and who may write it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expecting import expect_error

from rllm.runs.run_directory import WRITTEN, RunDirectory, run_directory_path
from rllm_core.errors import ConfigError, RllmError
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_sections import TrainerSection
from rllm_record.run_files import read_metrics

OpenDirectory = Callable[..., RunDirectory]


@pytest.fixture
def trainer(tmp_path: Path) -> TrainerSection:
    return TrainerSection(output_dir=str(tmp_path / "runs"), project_name="p", experiment_name="e")


@pytest.fixture
def open_directory(trainer: TrainerSection) -> Iterator[OpenDirectory]:
    opened: list[RunDirectory] = []

    def open_it(**options: Any) -> RunDirectory:
        opened.append(RunDirectory.open(trainer, **options))
        return opened[-1]

    yield open_it
    for directory in opened:
        directory.close()


@pytest.fixture
def finished(open_directory: OpenDirectory) -> Path:
    """The directory of a run of three steps that has ended."""
    directory = open_directory()
    directory.begin({"seed": 1}, [], 3)
    for step in range(3):
        directory.log(step, {"reward": step / 2})
    directory.checkpoints.mkdir()
    (directory.checkpoints / "step_000003").mkdir()
    (directory.path / "notes.txt").write_text("mine")
    directory.close()
    return directory.path


def test_a_run_has_its_own_directory(open_directory: OpenDirectory, tmp_path: Path, monkeypatch: Any) -> None:
    directory = open_directory()
    assert directory.path == tmp_path / "runs" / "p" / "e"
    assert directory.path.is_dir()
    assert (directory.history(), directory.holds_a_run()) == ([], False)
    directory.close()
    directory.close()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run_directory_path(TrainerSection(output_dir="~/runs")).is_relative_to(tmp_path)


def test_directory_with_a_run_is_rejected_with_alternatives(finished: Path, open_directory: OpenDirectory) -> None:
    with expect_error(ConfigError, "run-exists", finished) as caught:
        open_directory()
    for way_out in ("--resume", "--overwrite", "resume=True", "overwrite=True", "rllm.trainer.experiment_name=NAME"):
        assert way_out in caught.value.hint
    assert len(read_metrics(finished)) == 3
    open_directory(resume=True).close()  # It is not locked.


def test_beginning_removes_nothing_of_a_resumed_run(finished: Path, open_directory: OpenDirectory) -> None:
    directory = open_directory(resume=True, overwrite=True)
    assert [line["step"] for line in directory.history()] == [0, 1, 2]
    directory.begin({"seed": 2}, [], 3)
    directory.log(3, {"reward": 1.0})
    assert [line["step"] for line in directory.history()] == [0, 1, 2, 3]
    assert (directory.checkpoints / "step_000003").is_dir()
    assert "seed: 2" in (finished / "config.yaml").read_text()


def _contents(directory: Path) -> dict[str, str | None]:
    return {
        str(path.relative_to(directory)): path.read_text() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


def test_opening_to_overwrite_removes_nothing_and_locks(finished: Path, open_directory: OpenDirectory) -> None:
    before = _contents(finished)
    directory = open_directory(overwrite=True)
    assert directory.holds_a_run()
    assert _contents(finished) == before
    with expect_error(RllmError, "locked-directory"):
        open_directory(resume=True)
    directory.close()
    assert [line["step"] for line in open_directory(resume=True).history()] == [0, 1, 2]


def test_beginning_removes_only_the_replaced_run(finished: Path, open_directory: OpenDirectory) -> None:
    (finished / "episodes").mkdir()
    (finished / "episodes" / "step_000000.jsonl.gz").touch()
    ids = ("mlflow_run_id", "trackio_run_id", "wandb_run_id")
    for name in ("mlflow.db", "pending.json", "report.html", "status.json", *ids):
        (finished / name).write_text("old")
    for name in ("gateway", "journal", "record", "tensorboard", "wandb"):
        (finished / name).mkdir()
    (finished / "mine").mkdir()
    (finished / "mine" / "metrics.jsonl").write_text("keep")
    assert {path.name for path in finished.iterdir()} == {*WRITTEN, ".lock", "notes.txt", "mine"}
    directory = open_directory(overwrite=True)
    directory.begin({"seed": 2}, [], 3)
    assert _contents(finished) == {
        ".lock": "",
        "config.yaml": (finished / "config.yaml").read_text(),
        "length.json": '{"total_steps": 3}\n',
        "mine": None,
        "mine/metrics.jsonl": "keep",
        "notes.txt": "mine",
        "plugins.json": "[]\n",
    }
    assert "seed: 2" in (finished / "config.yaml").read_text()
    directory.log(0, {"reward": 9.0})
    directory.begin({"seed": 3}, [], 3)  # what it replaced is gone: this is its own
    assert directory.history() == [{"step": 0, "reward": 9.0}]


def test_beginning_follows_no_links(finished: Path, open_directory: OpenDirectory, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "data").write_text("keep")
    for name in ("link", "episodes"):
        (finished / name).symlink_to(tmp_path / "precious", target_is_directory=True)
    open_directory(overwrite=True).begin({}, [], 3)
    assert (tmp_path / "precious" / "data").read_text() == "keep"
    assert not (finished / "episodes").is_symlink()
    assert (finished / "link").is_symlink()


def test_directory_contains_a_run_after_it_begins(open_directory: OpenDirectory) -> None:
    directory = open_directory()
    directory.log(0, {})
    directory.checkpoints.mkdir()
    assert not directory.holds_a_run()
    registry = Registry.load(allow=[], environ={})
    directory.begin({"rllm": {"backend": "local"}}, [registry.get("estimator", "grpo"), registry.get("loss", "ppo")], 3)
    assert directory.holds_a_run()
    directory.close()
    with expect_error(ConfigError, "run-exists"):
        open_directory()
    noted = json.loads((directory.path / "plugins.json").read_text())
    kinds = [(entry["kind"], entry["name"], entry["distribution"]) for entry in noted]
    assert kinds == [("estimator", "grpo", "rllm-core"), ("loss", "ppo", "rllm-core")]
    assert all(entry["version"] for entry in noted)


GARBAGE = [b"no json\n", b"{\n", b'{"step": 1} x\n', b"\n", b"[1]\n", b'{"reward": 1.0}\n', b"\xff\n", b"\0\0\n"]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_garbage_line_is_an_error_unless_last(finished: Path, garbage: bytes) -> None:
    file = finished / "metrics.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + garbage)
    assert [line["step"] for line in read_metrics(finished)] == [0, 1, 2]
    first, *rest = whole.splitlines(keepends=True)
    file.write_bytes(first + garbage + b"".join(rest))
    with expect_error(RllmError, "damaged-file", "2", file):
        read_metrics(finished)
    file.write_bytes(whole + b'no json\n{"step": 3, "rew')
    with pytest.raises(RllmError, match="Line 4 of "):
        read_metrics(finished)


HOLD = """
import sys
from rllm_core.schema.run_sections import TrainerSection
from rllm.runs.run_directory import RunDirectory

directory = RunDirectory.open(TrainerSection(output_dir=sys.argv[1], project_name="p", experiment_name="e"))
print("open", flush=True)
sys.stdin.read()
"""


def test_only_a_living_process_holds_the_lock(open_directory: OpenDirectory, trainer: TrainerSection) -> None:
    command = [sys.executable, "-c", HOLD, trainer.output_dir]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "open\n"
        with expect_error(RllmError, "locked-directory", "runs/p/e", "rllm.trainer.experiment_name=NAME"):
            open_directory()
        first.kill()
        first.wait()
        open_directory()


@pytest.mark.parametrize("in_the_way", ["runs", "runs/p", "runs/p/e"])
def test_a_file_in_the_way_is_an_error(trainer: TrainerSection, tmp_path: Path, in_the_way: str) -> None:
    file = tmp_path / in_the_way
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("mine")
    with expect_error(RllmError, "not-writable", tmp_path / "runs/p/e", "rllm.trainer.output_dir=DIRECTORY"):
        RunDirectory.open(trainer)
    assert file.read_text() == "mine"


def _text(directory: RunDirectory) -> str:
    return (directory.path / "metrics.jsonl").read_text()


def test_metrics_are_on_disk_as_json_numbers(open_directory: OpenDirectory) -> None:
    directory = open_directory()
    directory.log(0, {"b": 0.5, "a": 1.0})
    directory.log(1, {"a": float("nan"), "b": float("inf"), "c": float("-inf"), "d": 1e308})
    directory.log(2, {"a": np.float32(0.5), "b": np.int64(3), "c": np.bool_(True)})  # type: ignore[dict-item]
    assert _text(directory).splitlines() == [
        '{"step": 0, "a": 1.0, "b": 0.5}',
        '{"step": 1, "a": null, "b": null, "c": null, "d": 1e+308}',
        '{"step": 2, "a": 0.5, "b": 3.0, "c": 1.0}',
    ]


@pytest.mark.parametrize("cut_off", ['{"step": 3, "rew', '{"step": 3, "reward": 0.5}', "{"])
def test_line_cut_off_by_crash_is_dropped(finished: Path, open_directory: OpenDirectory, cut_off: str) -> None:
    with (finished / "metrics.jsonl").open("a") as file:
        file.write(cut_off)
    directory = open_directory(resume=True)
    assert [line["step"] for line in directory.history()] == [0, 1, 2]
    directory.forget_after(3)
    directory.log(3, {"reward": 9.0})
    assert [json.loads(line)["step"] for line in _text(directory).splitlines()] == [0, 1, 2, 3]


@pytest.mark.parametrize(("first", "kept"), [(2, [-1, 0, 1, 1]), (0, [])])
def test_repeated_steps_are_forgotten(open_directory: OpenDirectory, first: int, kept: list[int]) -> None:
    directory = open_directory()
    for step, metrics in ((-1, {"val/x": 0.0}), (0, {"r": 0.0}), (1, {"r": 1.0}), (1, {"val/x": 1.0}), (2, {"r": 2.0})):
        directory.log(step, metrics)
    directory.close()
    again = open_directory(resume=True)
    again.forget_after(first)
    assert [line["step"] for line in again.history()] == kept
    again.log(first, {"r": 5.0})
    assert again.history()[-1] == {"step": first, "r": 5.0}
