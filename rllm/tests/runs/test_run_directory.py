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
from expecting import check_printed, expect_error

from rllm.runs.metrics_file import read_metrics
from rllm.runs.run_directory import WRITTEN, RunDirectory, run_directory_path
from rllm_core.errors import ConfigError, RllmError
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_sections import TrainerSection

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


def test_a_run_has_a_directory_of_its_project_and_experiment(open_directory: OpenDirectory, tmp_path: Path) -> None:
    directory = open_directory()
    assert directory.path == tmp_path / "runs" / "p" / "e"
    assert directory.path.is_dir()
    assert not directory.holds_a_run()


def test_the_home_directory_may_be_meant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run_directory_path(TrainerSection(output_dir="~/runs")).is_relative_to(tmp_path)


def test_directory_with_a_run_is_rejected_with_alternatives(finished: Path, open_directory: OpenDirectory) -> None:
    with expect_error(ConfigError, "run-exists", finished) as caught:
        open_directory()
    for way_out in ("--resume", "--overwrite", "resume=True", "overwrite=True", "rllm.trainer.experiment_name=NAME"):
        assert way_out in caught.value.hint
    assert len(read_metrics(finished)) == 3


def test_a_refused_directory_is_not_left_locked(finished: Path, open_directory: OpenDirectory) -> None:
    with pytest.raises(ConfigError):
        open_directory()
    open_directory(resume=True)


def test_resume_takes_up_what_is_there(finished: Path, open_directory: OpenDirectory) -> None:
    directory = open_directory(resume=True)
    assert [line["step"] for line in directory.history()] == [0, 1, 2]
    directory.log(3, {"reward": 1.0})
    assert [line["step"] for line in directory.history()] == [0, 1, 2, 3]


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


def test_beginning_removes_what_the_replaced_run_wrote_and_nothing_else(
    finished: Path, open_directory: OpenDirectory
) -> None:
    (finished / "episodes").mkdir()
    (finished / "episodes" / "step_000000.jsonl.gz").touch()
    for name in ("report.html", "wandb_run_id"):
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


def test_beginning_removes_nothing_of_a_run_that_is_resumed(finished: Path, open_directory: OpenDirectory) -> None:
    directory = open_directory(resume=True, overwrite=True)
    directory.begin({"seed": 2}, [], 3)
    assert [line["step"] for line in directory.history()] == [0, 1, 2]
    assert (directory.checkpoints / "step_000003").is_dir()
    assert "seed: 2" in (finished / "config.yaml").read_text()


def test_beginning_does_not_follow_links_out_of_the_directory(
    finished: Path, open_directory: OpenDirectory, tmp_path: Path
) -> None:
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
    directory.begin({}, [], 3)
    assert directory.holds_a_run()
    directory.close()
    with expect_error(ConfigError, "run-exists"):
        open_directory()


GARBAGE = [b"no json\n", b"{\n", b'{"step": 1} x\n', b"\n", b"[1]\n", b'{"reward": 1.0}\n', b"\xff\n", b"\0\0\n"]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_garbage_line_among_the_metrics_is_an_error_that_names_it(
    finished: Path, open_directory: OpenDirectory, garbage: bytes
) -> None:
    file = finished / "metrics.jsonl"
    first, *rest = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first + garbage + b"".join(rest))
    with expect_error(RllmError, "damaged-file", "2", file):
        open_directory(resume=True).history()


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_garbage_line_at_the_end_of_the_metrics_is_left_out(finished: Path, garbage: bytes) -> None:
    with (finished / "metrics.jsonl").open("ab") as file:
        file.write(garbage)
    assert [line["step"] for line in read_metrics(finished)] == [0, 1, 2]


def test_a_garbage_line_before_one_that_was_cut_off_is_not_the_last(finished: Path) -> None:
    with (finished / "metrics.jsonl").open("ab") as file:
        file.write(b'no json\n{"step": 3, "rew')
    with pytest.raises(RllmError, match="Line 4 of "):
        read_metrics(finished)


HOLD = """
import sys
from rllm_core.schema.run_sections import TrainerSection
from rllm_core.errors import RllmError
from rllm.runs.run_directory import RunDirectory

try:
    directory = RunDirectory.open(TrainerSection(output_dir=sys.argv[1], project_name="p", experiment_name="e"))
except RllmError as error:
    print(error.printed(), flush=True)
else:
    print("open", flush=True)
    sys.stdin.read()
"""


def _hold(trainer: TrainerSection) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, trainer.output_dir], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_a_second_process_is_refused(open_directory: OpenDirectory, trainer: TrainerSection) -> None:
    directory = open_directory()
    with _hold(trainer) as second:
        said, _ = second.communicate("")
    check_printed(said, "locked-directory", directory.path, "rllm.trainer.experiment_name=NAME")


def test_a_killed_process_leaves_no_lock(open_directory: OpenDirectory, trainer: TrainerSection) -> None:
    with _hold(trainer) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "open\n"
        with expect_error(RllmError, "locked-directory"):
            open_directory()
        first.kill()
        first.wait()
        open_directory()


@pytest.mark.parametrize("in_the_way", ["runs", "runs/p", "runs/p/e"])
def test_a_file_in_the_way_is_an_error_that_says_what_to_change(
    trainer: TrainerSection, tmp_path: Path, in_the_way: str
) -> None:
    file = tmp_path / in_the_way
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("mine")
    with expect_error(RllmError, "not-writable", tmp_path / "runs/p/e", "rllm.trainer.output_dir=DIRECTORY"):
        RunDirectory.open(trainer)
    assert file.read_text() == "mine"


def _text(directory: RunDirectory) -> str:
    return (directory.path / "metrics.jsonl").read_text()


def test_metrics_are_on_disk_as_soon_as_they_are_logged(open_directory: OpenDirectory) -> None:
    directory = open_directory()
    directory.log(0, {"b": 0.5, "a": 1.0})
    assert _text(directory) == '{"step": 0, "a": 1.0, "b": 0.5}\n'


def test_numbers_that_json_does_not_know_become_null(open_directory: OpenDirectory) -> None:
    directory = open_directory()
    directory.log(0, {"a": float("nan"), "b": float("inf"), "c": float("-inf"), "d": 1e308})
    assert json.loads(_text(directory), parse_constant=pytest.fail) == {
        "step": 0,
        "a": None,
        "b": None,
        "c": None,
        "d": 1e308,
    }


def test_numbers_of_numpy_are_logged_as_numbers(open_directory: OpenDirectory) -> None:
    directory = open_directory()
    directory.log(0, {"a": np.float32(0.5), "b": np.int64(3), "c": np.bool_(True), "d": np.float64(0.25)})  # type: ignore[dict-item]
    assert directory.history() == [{"step": 0, "a": 0.5, "b": 3.0, "c": 1.0, "d": 0.25}]


def test_no_metrics_give_no_history(open_directory: OpenDirectory) -> None:
    directory = open_directory()
    assert directory.history() == []
    directory.forget_after(3)
    assert not directory.holds_a_run()


@pytest.mark.parametrize("cut_off", ['{"step": 3, "rew', '{"step": 3, "reward": 0.5}', "{"])
def test_a_line_cut_off_by_a_crash_is_dropped(finished: Path, open_directory: OpenDirectory, cut_off: str) -> None:
    with (finished / "metrics.jsonl").open("a") as file:
        file.write(cut_off)
    directory = open_directory(resume=True)
    assert [line["step"] for line in directory.history()] == [0, 1, 2]
    directory.forget_after(3)
    directory.log(3, {"reward": 9.0})
    assert [json.loads(line)["step"] for line in _text(directory).splitlines()] == [0, 1, 2, 3]


def test_steps_that_will_be_made_again_are_forgotten(open_directory: OpenDirectory) -> None:
    directory = open_directory()
    for step, metrics in ((-1, {"val/x": 0.0}), (0, {"r": 0.0}), (1, {"r": 1.0}), (1, {"val/x": 1.0}), (2, {"r": 2.0})):
        directory.log(step, metrics)
    directory.close()
    again = open_directory(resume=True)
    again.forget_after(2)
    assert [line["step"] for line in again.history()] == [-1, 0, 1, 1]
    again.log(2, {"r": 5.0})
    assert again.history()[-1] == {"step": 2, "r": 5.0}


def test_a_run_that_starts_over_also_forgets_the_validation_before_its_first_step(
    open_directory: OpenDirectory,
) -> None:
    directory = open_directory()
    directory.log(-1, {"val/x": 0.0})
    directory.log(0, {"r": 0.0})
    directory.close()
    again = open_directory(resume=True)
    again.forget_after(0)
    assert again.history() == []


def test_the_plugins_of_a_run_are_noted(open_directory: OpenDirectory) -> None:
    directory = open_directory()
    registry = Registry.load(allow=[], environ={})
    directory.begin({"rllm": {"backend": "local"}}, [registry.get("estimator", "grpo"), registry.get("loss", "ppo")], 3)
    noted = json.loads((directory.path / "plugins.json").read_text())
    assert [(entry["kind"], entry["name"], entry["distribution"]) for entry in noted] == [
        ("estimator", "grpo", "rllm-core"),
        ("loss", "ppo", "rllm-core"),
    ]
    assert all(entry["version"] for entry in noted)


def test_closing_twice_does_no_harm(open_directory: OpenDirectory) -> None:
    directory = open_directory()
    directory.log(0, {})
    directory.close()
    directory.close()
