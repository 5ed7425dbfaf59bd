"""The store is consistent after each single write: a checkpoint in it has all that it needs."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from failing_files import FailingFiles

from rllm_core.files import write_atomically
from rllm_record.store import copying
from rllm_record.store.copying import GROWTH, SMALL, Copier
from rllm_record.store.fetching import fetch
from rllm_record.store.places import StorePlace

KEPT = 2


class SmallRun:
    """The files of a run: a line of metrics for each step, a file for each batch, and the newest checkpoints."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "journal").mkdir(parents=True)
        (directory / "checkpoints").mkdir()
        (directory / "config.yaml").write_text("seed: 1")

    def step(self, step: int) -> None:
        with (self.directory / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step}) + "\n")
        (self.directory / "journal" / f"{step}.calls").write_text(f"call {step}")

    def save(self, step: int) -> None:
        """Save a checkpoint as a run does: renamed when it is whole, then older ones and their journal are removed."""
        checkpoints = self.directory / "checkpoints"
        temporary = checkpoints / ".new.tmp"
        (temporary / "backend").mkdir(parents=True)
        (temporary / "backend" / "weights").write_text(f"weights {step}")
        (temporary / "state.json").write_text(str(step))
        (temporary / "manifest.json").write_text(f"weights {step}")
        temporary.rename(checkpoints / f"step_{step:06d}")
        all_checkpoints = sorted(checkpoints.glob("step_*"))
        for old in all_checkpoints[:-KEPT]:
            shutil.rmtree(old)
        for file in (self.directory / "journal").iterdir():
            if int(file.stem) < int(all_checkpoints[-KEPT:][0].name[5:]):
                file.unlink()


def check_consistent(directory: Path) -> int:
    """Return the step of the newest checkpoint, 0 if there is none. It must have all that it needs."""
    checkpoints = sorted((directory / "checkpoints").glob("step_*"))
    for checkpoint in checkpoints:
        step = int(checkpoint.name[5:])
        assert (checkpoint / "backend" / "weights").read_text() == (checkpoint / "manifest.json").read_text()
        assert (checkpoint / "state.json").read_text() == str(step)
        assert len((directory / "metrics.jsonl").read_text().splitlines()) > step
        assert (directory / "journal" / f"{step}.calls").exists()
    return int(checkpoints[-1].name[5:]) if checkpoints else 0


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    names = {str(path.relative_to(directory)): path for path in files}
    return {name: path.read_bytes() for name, path in names.items() if not name.startswith(".")}


def train(run: SmallRun, copier: Copier) -> None:
    for step in range(7):
        run.step(step)
        if step % 2:
            run.save(step)
        copier.copy()


def test_store_is_consistent_after_each_write(
    place: StorePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, newest = 0, [0]
    monkeypatch.setattr(copying, "write_atomically", Path.write_text)  # without waiting for a disk
    while True:
        place.files.store.clear()
        failing = FailingFiles(place.files, number)
        run = SmallRun(tmp_path / f"run-{number}")
        copier = Copier(replace(place, files=failing), run.directory)
        try:
            train(run, copier)
        except OSError:
            pass
        else:
            break
        copy = tmp_path / f"copy-{number}"
        fetch(place, copy)
        newest.append(check_consistent(copy))

        # When the store can be written again, it becomes equal.
        failing.allowed = float("inf")
        copier.copy()
        fetch(place, copy)
        assert contents(copy) == contents(run.directory)
        number += 1
    assert number == len(failing.writes) > 20
    assert newest == sorted(newest)
    assert max(newest) == 5


def test_replaced_run_disappears_from_the_store_first(place: StorePlace, tmp_path: Path) -> None:
    train(SmallRun(tmp_path / "old"), Copier(place, tmp_path / "old"))
    new = SmallRun(tmp_path / "new")
    new.step(0)
    files = FailingFiles(place.files)
    copier = Copier(replace(place, files=files), new.directory)
    place.write("notes.txt", b"mine")
    copier.replace(["config.yaml", "metrics.jsonl", "checkpoints", "journal"])
    assert place.read("notes.txt") == b"mine"
    copier.copy()
    kinds = [write.partition(" ")[0] for write in files.writes]
    assert kinds == sorted(kinds, reverse=True)
    assert files.writes[0] == "rm checkpoints/step_000003/manifest.json"
    assert kinds.count("put") == 3


def test_only_changed_files_are_copied_again(place: StorePlace, tmp_path: Path) -> None:
    run = SmallRun(tmp_path / "run")
    run.step(0)
    files = FailingFiles(place.files)
    Copier(replace(place, files=files), run.directory).copy()
    files.writes.clear()
    run.step(1)
    # A new process has no memory of the first copy, except in the run's directory.
    Copier(replace(place, files=files), run.directory).copy()
    assert files.writes == ["put journal/1.calls", "put metrics.jsonl"] or files.writes == [
        "put metrics.jsonl",
        "put journal/1.calls",
    ]


def test_growing_file_is_copied_a_few_times(place: StorePlace, tmp_path: Path) -> None:
    run = SmallRun(tmp_path / "run")
    file, copier = run.directory / "metrics.jsonl", Copier(place, run.directory)
    written, line = 0, "x" * 50_000
    while written < 4 * SMALL:
        with file.open("a") as opened:
            written += opened.write(line)
        copier.copy()
    small = SMALL * SMALL / 50_000 / 2  # all copies while the file is small
    assert copier.copied_bytes < small + (GROWTH + 2) * written
    before = place.files.size(place.object_path("metrics.jsonl"))
    assert before >= written * GROWTH / (GROWTH + 1)
    run.step(1)
    run.save(1)
    copier.copy()
    assert place.files.size(place.object_path("metrics.jsonl")) == file.stat().st_size


def test_database_is_copied_while_it_is_written(place: StorePlace, tmp_path: Path) -> None:
    run = SmallRun(tmp_path / "run")
    path, copier = run.directory / "calls.db", Copier(place, run.directory)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE calls (number INTEGER)")
        copier.copy()
        database.execute("INSERT INTO calls VALUES (1)")
        copier.copy()
        database.execute("BEGIN")
        database.execute("INSERT INTO calls VALUES (2)")
        copier.copy()
        fetch(place, tmp_path / "copy")
    with closing(sqlite3.connect(tmp_path / "copy" / "calls.db")) as copy:
        assert copy.execute("SELECT number FROM calls").fetchall() == [(1,)]
    assert not [name for name in place.objects() if name.startswith("calls.db-")]


def test_links_and_hidden_files_are_not_copied(place: StorePlace, tmp_path: Path) -> None:
    run = SmallRun(tmp_path / "run")
    run.save(0)
    write_atomically(run.directory / ".lock", "")
    (run.directory / "checkpoints" / "latest").symlink_to("step_000000")
    (run.directory / "checkpoints" / ".step_000001.tmp").mkdir()
    (run.directory / "checkpoints" / ".step_000001.tmp" / "manifest.json").write_text("")
    Copier(place, run.directory).copy()
    found: dict[str, Any] = place.objects()
    assert sorted(found) == [
        "checkpoints/step_000000/backend/weights",
        "checkpoints/step_000000/manifest.json",
        "checkpoints/step_000000/state.json",
        "config.yaml",
    ]
    fetch(place, tmp_path / "copy")
    assert (tmp_path / "copy" / "checkpoints" / "latest" / "state.json").read_text() == "0"


def test_deleted_local_checkpoints_stay_in_the_store(place: StorePlace, tmp_path: Path) -> None:
    run = SmallRun(tmp_path / "run")
    train(run, Copier(place, run.directory))
    before = place.objects().keys()
    shutil.rmtree(run.directory / "checkpoints" / "step_000003")
    (run.directory / "metrics.jsonl").unlink()
    Copier(place, run.directory).copy()
    assert place.objects().keys() == before


def test_last_whole_checkpoint_stays_while_uploads_are_slow(place: StorePlace, tmp_path: Path) -> None:
    run = SmallRun(tmp_path / "run")
    copier = Copier(place, run.directory)
    run.step(0)
    run.step(1)
    run.save(1)
    run.step(2)
    copier.copy()

    class SlowFiles(FailingFiles):
        def put_file(self, source: str, path: str) -> None:
            step = int(max((run.directory / "checkpoints").glob("step_*")).name[5:])
            if "checkpoints" in path and step < 9:
                for newer in (step + 1, step + 2):
                    run.step(newer)
                    run.save(newer)
            place.files.put_file(source, path)

    copier._place = replace(place, files=SlowFiles(place.files))
    run.step(3)
    run.save(3)
    run.step(4)
    run.save(4)
    while copier.has_new_checkpoint():
        copier.copy()
        fetch(place, tmp_path / "copy")
        assert check_consistent(tmp_path / "copy") >= 1
    assert check_consistent(tmp_path / "copy") >= 9


def test_checkpoint_that_ends_during_the_walk_waits(
    place: StorePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SmallRun(tmp_path / "run")
    run.step(0)
    walk = os.walk

    def slow_walk(directory: Path) -> Any:
        for number, each in enumerate(walk(directory)):
            if not number and not (directory / "checkpoints" / "step_000001").exists():
                run.step(1)
                (directory / "late.txt").write_text("1")
                run.save(1)
            yield each

    monkeypatch.setattr(os, "walk", slow_walk)
    copier = Copier(place, run.directory)
    copier.copy()
    names = place.objects().keys()
    assert "checkpoints/step_000001/manifest.json" not in names
    copier.copy()
    assert {"late.txt", "checkpoints/step_000001/manifest.json"} <= place.objects().keys()


def test_file_that_cannot_be_read_is_a_warning(
    place: StorePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = SmallRun(tmp_path / "run")
    run.step(0)
    os.mkfifo(run.directory / "pipe")
    (run.directory / "a.txt").write_text("")
    opened = Path.open

    def fail(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "a.txt":
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", fail)
    copier = Copier(place, run.directory)
    copier.copy()
    copier.copy()
    assert place.objects().keys() == {"config.yaml", "metrics.jsonl", "journal/0.calls"}
    assert capsys.readouterr().err.count("a.txt cannot be read") == 1
