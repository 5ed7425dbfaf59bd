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

from rllm_local.same_bits import TIMING_MATTERS

pytestmark = pytest.mark.long

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
)
AHEAD = ("rllm.async_training.enable=true", "rllm.async_training.staleness_threshold=1")
# The sampler and both estimators keep state between steps.
STATEFUL = ("--sampler", "thompson", "rllm.algorithm.adv_estimator={name: mix, parts: [rae, spo]}")
LATEST = (*AHEAD, "rllm.async_training.partial_rollout=true")
SAME = "after step 2: the same weights\nafter step 4: the same weights\nafter step 6: the same weights\n"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "rllm-training" / "default"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, command_server: Any) -> Path:
    """Return the directory of a run that is made once."""
    directory: Path = tmp_path_factory.mktemp("made")
    process = command_server.start("rllm.cli.main", WORDS, directory, os.environ | {"RLLM_BLOCK_PLUGINS": "rllm-view"})
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    return directory


@pytest.fixture
def trained(made: Path, tmp_path: Path, directory: Path) -> Path:
    """Return a copy of that run in the test's directory."""
    shutil.copytree(made, tmp_path, symlinks=True, dirs_exist_ok=True)
    return directory


def test_a_run_gives_the_same_weights_at_every_checkpoint_and_is_only_read(forked_rllm: Any, trained: Path) -> None:
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    replayed = forked_rllm("replay", str(trained))
    assert (replayed.returncode, replayed.stderr) == (0, "")
    assert replayed.stdout.startswith(SAME)
    assert "checkpoints: 3, " in replayed.stdout
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "terms", [(*AHEAD, *STATEFUL), pytest.param(LATEST, marks=pytest.mark.long)], ids=["fixed", "latest"]
)
def test_killed_and_resumed_asynchronous_run_is_replayed(
    start_forked_rllm: Any, forked_rllm: Any, directory: Path, terms: tuple[str, ...]
) -> None:
    process = start_forked_rllm(*WORDS, *terms)
    deadline = time.monotonic() + 200
    while not (directory / "checkpoints" / "step_000002").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.communicate()
    resumed = forked_rllm(*WORDS, *terms, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    replayed = forked_rllm("replay", str(directory))
    # On some processors the results of a row depend on the other rows. A replay does not sample.
    assert replayed.stderr in ("", f"warning: {TIMING_MATTERS}\n")
    assert replayed.returncode == 0
    assert replayed.stdout.startswith(SAME)
    assert "checkpoints: 3, " in replayed.stdout


def test_what_does_not_follow_is_named(forked_rllm: Any, trained: Path) -> None:
    _other_weights(trained)
    replayed = forked_rllm("replay", str(trained))
    assert replayed.returncode == 1
    check_values(replayed.stdout, "after step 2: ", "after step 4: other backend/model/model.safetensors\n")
    check_values(replayed.stdout.splitlines()[-1], ": 1, ", "step 4")
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


def test_a_run_without_a_whole_journal_is_refused(forked_rllm: Any, directory: Path, trained: Path) -> None:
    (trained / "journal" / "checkpoints.jsonl").unlink()
    replayed = forked_rllm("replay", str(trained))
    assert replayed.returncode == 1
    check_printed(replayed.stderr, "no-journal", directory.name, "observers=[{name: journal, keep: run}]")


def _other_weights(run: Path) -> None:
    """Change the digests of the second checkpoint."""
    path = run / "journal" / "checkpoints.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["sha256"]["backend/model/model.safetensors"] = "0" * 64
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def _calls(content: bytes) -> int:
    """Return the number of records of a file, from their headers: length, number and two checksums of 4 bytes each."""
    place = count = 0
    while place < len(content):
        place, count = place + 16 + int.from_bytes(content[place : place + 4], "little"), count + 1
    return count
