"""The tracker `wandb`, offline; what it left on disk for `wandb sync` is read back."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from expecting import check_values

from rllm.builtin.trackers.weights_and_biases import WeightsAndBiasesParams, WeightsAndBiasesTracker
from rllm.runs.run_directory import RunDirectory
from rllm.tracking.tracker_group import Trackers
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.contracts.train_step import TrainStep
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry

BLOCK = 32 * 1024


@pytest.fixture(autouse=True)
def nothing_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings and no key from outside, no files and no process left behind."""
    import wandb

    before = dict(os.environ)
    for name in before:
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    for name in ("HOME", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    # The client puts its own in their place.
    monkeypatch.setattr(sys, "exit", sys.exit)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    yield
    wandb.teardown()
    for name in set(os.environ) - set(before):
        del os.environ[name]
    assert _children() == []


def _children() -> list[str]:
    """Commands of this process's living children that have to do with wandb."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
            command = (directory / "cmdline").read_text().replace("\0", " ")
        except (OSError, ValueError):
            continue
        if parent == os.getpid() and "wandb" in command:
            found.append(command)
    return found


def _tracker(run: TrackedRun, **options: Any) -> WeightsAndBiasesTracker:
    return WeightsAndBiasesTracker(run, WeightsAndBiasesParams(**{"mode": "offline"} | options))


def _start(run: TrackedRun, first_step: int = 0, steps: int = 1) -> str:
    """A start of a run, from its beginning to its end; returns W&B's id of it."""
    tracker = _tracker(run)
    tracker.on_train_start(10, first_step)
    for step in range(first_step, first_step + steps):
        tracker.log(step, {"reward": step / 2})
    tracker.on_train_end(first_step + steps)
    tracker.close()
    return (run.directory / "wandb_run_id").read_text().strip()


def _files(directory: Path) -> list[Path]:
    """What runs left in `directory`. `finish` does not wait for the disk; the end of the client's process does."""
    import wandb

    wandb.teardown()
    return sorted((directory / "wandb").glob("offline-run-*/*.wandb"))


def _records(file: Path) -> list[Any]:
    """The records of a ``.wandb`` file: a LevelDB log with its own header."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, parts, records = file.read_bytes(), 7, [], []
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:  # no room for a header: padding
            place += BLOCK - place % BLOCK
            continue
        length = int.from_bytes(data[place + 4 : place + 6], "little")
        parts.append(data[place + 7 : place + 7 + length])
        if data[place + 6] in (1, 4):  # whole, or the last part
            records.append(Record.FromString(b"".join(parts)))
            parts = []
        place += 7 + length
    return records


def _of_type(file: Path, name: str) -> list[Any]:
    return [getattr(record, name) for record in _records(file) if record.WhichOneof("record_type") == name]


def _rows(file: Path) -> list[dict[str, Any]]:
    rows = []
    for history in _of_type(file, "history"):
        items = {(item.key or ".".join(item.nested_key)): json.loads(item.value_json) for item in history.item}
        rows.append({name: value for name, value in items.items() if not name.startswith("_")})
    return rows


def test_run_stores_rows_table_settings_and_success(
    run: TrackedRun, tmp_path: Path, make_step: Callable[..., TrainStep], capfd: pytest.CaptureFixture[str]
) -> None:
    tracker = _tracker(run, entity="team", tags=["a", "b"], group="sweep", episodes=2, episodes_every=3)
    tracker.on_train_start(2, 0)
    tracker.log(-1, {"val/openai/gsm8k/pass@1": 0.25})
    tracker.log(0, {"reward/agent/mean": 0.5, "nan": float("nan"), "inf": float("inf")})
    tracker.on_batch_end(make_step(0, 0.5, 0.0, 1.0))
    tracker.log(1, {"reward/agent/mean": 1.0})
    tracker.log(1, {"val/openai/gsm8k/pass@1": 0.75})
    tracker.on_train_end(2)
    tracker.close()

    (file,) = _files(run.directory)
    first, second, third = _rows(file)
    assert first == {"step": -1, "val/openai/gsm8k/pass@1": 0.25}
    assert (second["step"], second["reward/agent/mean"]) == (0, 0.5)
    assert (str(float(second["nan"])), float(second["inf"])) == ("nan", math.inf)
    assert third == {"step": 1, "reward/agent/mean": 1.0, "val/openai/gsm8k/pass@1": 0.75}
    (table,) = file.parent.glob("files/media/table/*.json")
    data = json.loads(table.read_text())
    assert data["columns"][2] == "reward"
    assert [each[2] for each in data["data"]] == [0.0, 1.0]
    sent = _of_type(file, "run")[0]
    assert (sent.project, sent.display_name, sent.entity) == ("numbers", "first", "team")
    assert (list(sent.tags), sent.run_group) == (["a", "b"], "sweep")
    config = {update.key: json.loads(update.value_json) for update in sent.config.update}
    assert {key: config[key] for key in run.config} == run.config
    assert [each.exit_code for each in _of_type(file, "exit")] == [0]
    # All files are in the run directory, and nothing is printed.
    assert {entry.name for entry in run.directory.iterdir()} - {".lock"} == {"wandb", "wandb_run_id"}
    assert {entry.name for entry in tmp_path.iterdir()} <= {"home", run.directory.parent.name}
    assert capfd.readouterr() == ("", "")


def test_a_resumed_run_goes_on_under_its_id(run: TrackedRun) -> None:
    first = _start(run, steps=4)
    second = _start(run, first_step=2, steps=4)
    assert first == second
    files = _files(run.directory)
    assert len(files) == 2
    assert {_of_type(file, "run")[0].run_id for file in files} == {first}
    assert sorted(row["step"] for file in files for row in _rows(file)) == [0, 1, 2, 2, 3, 3, 4, 5]


def test_new_or_untracked_runs_have_a_new_id(run: TrackedRun) -> None:
    untracked = _start(run, first_step=3)
    assert untracked and _start(run) != untracked


def test_disabled_leaves_nothing_but_an_id(run: TrackedRun) -> None:
    tracker = _tracker(run, mode="disabled")
    tracker.on_train_start(1, 0)
    tracker.log(0, {"reward": 0.5})
    tracker.close()
    assert _children() == []
    assert {entry.name for entry in run.directory.iterdir()} - {".lock"} <= {"wandb_run_id"}


def test_environment_chooses_the_mode(run: TrackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracker = _tracker(run, mode=None)
    tracker.on_train_start(5, 0)
    tracker.log(0, {"reward": 0.5})
    tracker.close()
    (file,) = _files(run.directory)
    assert len(_rows(file)) == 1
    assert [each.exit_code for each in _of_type(file, "exit")] == [1]  # It did not reach its end.


def test_other_wandb_run_of_the_process_stays_separate(run: TrackedRun, tmp_path: Path) -> None:
    import wandb

    with wandb.init(mode="offline", dir=str(tmp_path), settings=wandb.Settings(silent=True)) as other:
        assert _start(run) != other.id
        other.log({"theirs": 1.0})
    (file,) = _files(tmp_path)
    assert _rows(file) == [{"theirs": 1.0}]


def _trackers(directory: RunDirectory, run: TrackedRun, mode: str) -> tuple[Trackers, list[str]]:
    warnings: list[str] = []
    chosen = choose(Registry.load(allow=["rllm"]), "tracker", {"name": "wandb", "mode": mode}, "rllm.trainer.logger[0]")
    return Trackers([chosen], directory, run, warnings.append), warnings


def test_training_continues_without_a_key(directory: RunDirectory, run: TrackedRun) -> None:
    trackers, warnings = _trackers(directory, run, "online")
    trackers.notify("on_train_start", 2, 0)
    trackers.log(0, {"reward": 0.5})
    trackers.close()
    assert len(warnings) == 1
    check_values(warnings[0], "'wandb'", "UsageError: No API key")
    assert len(directory.history()) == 1
