"""A run stopped at any moment and resumed ends with the same weights and metrics, bit for bit."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from expecting import check_values

STEPS = 10
STOPPED = 4
"""Steps after which a run is stopped."""
WORDS = (
    "train",
    "guess",
    f"rllm.trainer.total_batches={STEPS}",
    "rllm.rollout.n=4",
    "rllm.rollout.n_val=1",
    "rllm.trainer.test_freq=6",
    "rllm.trainer.save_freq=3",
    "data.train_batch_size=8",
)
# The sampler and both estimators keep state between steps.
STATEFUL = ("--sampler", "thompson", "rllm.algorithm.adv_estimator={name: mix, parts: [rae, spo]}")
# Some steps only collect groups. Collected groups must survive as well.
WAITING = ("--rejection", "episode", "rllm.rejection_sample.min_partial_solve_tasks=10", *STATEFUL)
AHEAD = ("rllm.async_training.enable=true", "rllm.async_training.staleness_threshold=2")
CRITIC = ("--estimator", "gae", "rllm.algorithm.kl_beta=0.01", "rllm.algorithm.rollout_correction.tis_mode=token")
ADAPTER = ("model.lora_rank=8", "model.dtype=bfloat16", "rllm.algorithm.kl_beta=0.01")
# Several batches of tasks in one step, and groups left over.
FILLING = ("--rejection", "dynamic", "data.train_batch_size=4", "rllm.rejection_sample.max_gen_batches=4")
RUNS = Path("runs", "rllm-training")


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]


def weights(run: Path) -> dict[str, bytes]:
    backend = run / "checkpoints" / "latest" / "backend"
    return {path.name: path.read_bytes() for path in backend.rglob("*.safetensors")}


def wait_for_steps(run: Path, count: int, process: Any) -> None:
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        file = run / "metrics.jsonl"
        if file.exists() and len(file.read_text().splitlines()) > count:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    raise AssertionError("the run made no progress")


def check_same(run: Path, reference: Path) -> None:
    assert weights(run) == weights(reference)
    assert metrics(run) == metrics(reference)


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the undisturbed run of `WAITING`, from a new process: its hash seed differs from the forked ones."""
    directory = tmp_path_factory.mktemp("uninterrupted")
    environ = os.environ | {"RLLM_BLOCK_PLUGINS": "rllm-view"}
    command = [sys.executable, "-m", "rllm.cli.main", *WORDS, *WAITING]
    subprocess.run(command, cwd=directory, check=True, timeout=200, env=environ)
    return directory / RUNS / "guess-1"


@pytest.mark.parametrize(
    ("number", "terms", "files"),
    [
        pytest.param(signal.SIGTERM, WAITING, "model optimizer", marks=pytest.mark.long, id="groups waiting"),
        pytest.param(signal.SIGKILL, (*STATEFUL, *AHEAD), "model optimizer", marks=pytest.mark.smoke, id="ahead"),
        pytest.param(signal.SIGKILL, CRITIC, "critic model optimizer", marks=pytest.mark.long, id="critic, reference"),
        pytest.param(signal.SIGINT, ADAPTER, "adapter_model optimizer", marks=pytest.mark.long, id="adapter"),
        pytest.param(signal.SIGKILL, FILLING, "model optimizer", marks=pytest.mark.long, id="filling batches"),
    ],
)
def test_stopped_and_resumed_run_ends_as_if_uninterrupted(
    request: pytest.FixtureRequest,
    number: signal.Signals,
    terms: tuple[str, ...],
    files: str,
    start_forked_rllm: Any,
    forked_rllm: Any,
    tmp_path: Path,
) -> None:
    words, run = (*WORDS, *terms), tmp_path / RUNS / "guess-1"
    process = start_forked_rllm(*words)
    wait_for_steps(run, STOPPED, process)
    process.send_signal(number)
    output, errors = process.communicate(timeout=200)
    if number is signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 128 + number, errors
        assert "this step" in errors
        assert "--resume" in output

    resumed = forked_rllm(*words, "--resume")

    assert resumed.returncode == 0, resumed.stderr
    assert "resuming after " in resumed.stdout
    if terms is WAITING:
        reference = request.getfixturevalue("waiting")
    else:
        reference = tmp_path / RUNS / "uninterrupted"
        assert forked_rllm(*words, "rllm.trainer.experiment_name=uninterrupted").returncode == 0
    check_same(run, reference)
    assert set(weights(run)) == {f"{name}.safetensors" for name in files.split()}
    # The reference model is the run's first model, not the checkpoint's.
    assert all(line.get("actor/kl_ref", 0) >= 0 for line in metrics(run))
    assert (max(line.get("batch/rollout_batches", 0) for line in metrics(run)) > 1) == (terms is FILLING)


@pytest.mark.smoke
def test_killed_fine_tuning_ends_as_if_uninterrupted(start_forked_rllm: Any, forked_rllm: Any, tmp_path: Path) -> None:
    turn = '{"role": "user", "content": "%d plus 1 is"}, {"role": "assistant", "content": "%d"}'
    row = f'{{"messages": [{turn}, {turn}]}}'
    for name, numbers in (("train", range(16)), ("val", range(16, 20))):
        rows = [row % (number, number + 1, number + 1, number + 2) for number in numbers]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    words = ("sft", "--data", "train.jsonl", "--val-data", "val.jsonl", "--train-on", "last")
    words += ("data.train_batch_size=4", "rllm.trainer.total_epochs=4", "rllm.trainer.save_freq=4")
    reference = forked_rllm(*words, "rllm.trainer.experiment_name=uninterrupted")
    assert reference.returncode == 0, reference.stderr
    process = start_forked_rllm(*words)
    runs = tmp_path / "runs" / "rllm-sft"
    wait_for_steps(runs / "run-1", STOPPED, process)
    process.kill()
    process.communicate(timeout=200)
    # The run's own values, such as the data and the trained tokens, need not be repeated.
    resumed = forked_rllm("sft", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    check_same(runs / "run-1", runs / "uninterrupted")


@pytest.mark.long
def test_damaged_checkpoint_is_reported_and_earlier_one_used(waiting: Path, forked_rllm: Any, tmp_path: Path) -> None:
    run = tmp_path / RUNS / "guess-1"
    shutil.copytree(waiting, run, symlinks=True)
    latest = (run / "checkpoints" / "latest").resolve()
    file = latest / "backend" / "model" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)

    resumed = forked_rllm(*WORDS, *WAITING, "--resume")

    assert resumed.returncode == 0, resumed.stderr
    check_values(resumed.stderr, latest.name, "damaged (backend/model/model.safetensors")
    assert f"resuming after {STEPS - 1} of {STEPS} steps" in resumed.stdout
    check_same(run, waiting)


@pytest.mark.smoke
def test_runs_without_a_name_are_numbered(rllm_here: Any, start_forked_rllm: Any, tmp_path: Path) -> None:
    short = ("rllm.trainer.total_batches=1", "rllm.trainer.val_before_train=false", "rllm.trainer.test_freq=-1")
    words = ("train", "guess", *short, "rllm.rollout.n=2", "data.train_batch_size=4")
    for process in [start_forked_rllm(*words) for _ in range(2)]:  # Both may choose the same number at first.
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
    assert sorted(path.name for path in (tmp_path / RUNS).iterdir()) == ["guess-1", "guess-2"]

    again = rllm_here("train", "--config", str(tmp_path / RUNS / "guess-1" / "config.yaml"), "--dry-run")
    assert '"guess-3"' in again.stdout
    assert rllm_here(*words, "--model", "./none").returncode == 2
    resumed = rllm_here("train", "guess", "--resume", "rllm.trainer.total_batches=2")
    (run,) = re.findall(r"run directory (\S+), whose run continues\n", resumed.stdout)
    assert len([line for line in metrics(Path(run)) if "actor/loss" in line]) == 2
    replaced = rllm_here(*words, "--overwrite")
    assert f"run directory {run}, whose run is replaced\n" in replaced.stdout
    assert len(list((tmp_path / RUNS).iterdir())) == 2
