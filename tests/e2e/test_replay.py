"""`rllm replay`: the updates of a run follow from its journal, or differences are reported."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from expecting import check_printed, check_values

WORDS = (
    "train",
    "guess",
    "rllm.trainer.observers=[{name: journal, keep: run}]",
    "rllm.trainer.total_batches=6",
    "rllm.trainer.save_freq=2",
    "rllm.trainer.test_freq=-1",
    "rllm.trainer.val_before_train=false",
    "rllm.rollout.n=4",
    "rllm.rollout.n_val=1",
    "data.train_batch_size=8",
    "rllm.async_training.enable=true",
    "rllm.async_training.staleness_threshold=1",
)
# The sampler and both estimators keep state between steps.
STATEFUL = ("--sampler", "thompson", "rllm.algorithm.adv_estimator={name: mix, parts: [rae, spo]}")
SAME = "after 2 steps: the same weights\nafter 4 steps: the same weights\nafter 6 steps: the same weights\n"


RUN = Path("runs", "rllm-training", "guess-1")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, command_server: Any) -> Path:
    """Return the directory of a stateful asynchronous run that was killed and resumed."""
    directory, environ = tmp_path_factory.mktemp("made"), os.environ | {"RLLM_BLOCK_PLUGINS": "rllm-view"}
    process = command_server.start("rllm.cli.main", (*WORDS, *STATEFUL), directory, environ)
    deadline = time.monotonic() + 200
    while not (directory / RUN / "checkpoints" / "step_000002").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.communicate()
    resumed = command_server.start("rllm.cli.main", (*WORDS, *STATEFUL, "--resume"), directory, environ)
    _, errors = resumed.communicate()
    assert resumed.returncode == 0, errors
    return directory


@pytest.fixture
def trained(made: Path, tmp_path: Path) -> Path:
    """Return a copy of that run in the test's directory."""
    shutil.copytree(made, tmp_path, symlinks=True, dirs_exist_ok=True)
    return tmp_path / RUN


def check_replayed(replayed: Any) -> None:
    assert "warning" not in replayed.stderr
    assert replayed.returncode == 0
    assert replayed.stdout.startswith(SAME)
    assert "checkpoints: 3, " in replayed.stdout


@pytest.mark.smoke
def test_replay_of_resumed_run_only_reads_it(forked_rllm: Any, trained: Path) -> None:
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    check_replayed(forked_rllm("replay", str(trained)))
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before


@pytest.mark.long
def test_run_with_the_latest_weights_is_replayed(forked_rllm: Any, tmp_path: Path) -> None:
    done = forked_rllm(*WORDS, "rllm.async_training.partial_rollout=true")
    assert done.returncode == 0, done.stderr
    check_replayed(forked_rllm("replay", str(tmp_path / RUN)))


@pytest.mark.long
def test_what_does_not_follow_is_named(forked_rllm: Any, trained: Path) -> None:
    # Change the digests of the second checkpoint.
    path = trained / "journal" / "checkpoints.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["sha256"]["backend/model/model.safetensors"] = "0" * 64
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    replayed = forked_rllm("replay", str(trained))
    assert replayed.returncode == 1
    check_values(replayed.stdout, "after 2 steps: ", "after 4 steps: other backend/model/model.safetensors\n")
    check_values(replayed.stdout.splitlines()[-1], ": 1, ", "4 steps")
    file = trained / "journal" / "000003.calls"
    content = file.read_bytes()

    file.write_bytes(content[:-1])
    replayed = forked_rllm("replay", str(trained))
    assert replayed.returncode == 1
    check_printed(replayed.stderr, "journal-mismatch", "batch 3")
    assert file.read_bytes() == content[:-1]

    file.write_bytes(content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])
    replayed = forked_rllm("replay", str(trained))
    assert replayed.returncode == 1
    check_printed(replayed.stderr, "damaged-journal", f"Record {_calls(content) - 1} of {file}")


@pytest.mark.long
def test_a_run_without_a_whole_journal_is_refused(forked_rllm: Any, trained: Path) -> None:
    (trained / "journal" / "checkpoints.jsonl").unlink()
    replayed = forked_rllm("replay", str(trained))
    assert replayed.returncode == 1
    check_printed(replayed.stderr, "no-journal", trained.name, "observers=[{name: journal, keep: run}]")


def _calls(content: bytes) -> int:
    """Return the number of records of a file, from their headers: length, number and two checksums of 4 bytes each."""
    place = count = 0
    while place < len(content):
        place, count = place + 16 + int.from_bytes(content[place : place + 4], "little"), count + 1
    return count
