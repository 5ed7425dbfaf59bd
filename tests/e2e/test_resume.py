"""A run stopped at any moment and resumed ends with the same weights and metrics, bit for bit.

Each comparison is with a new process, whose hash seed differs from the forked ones.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from expecting import check_values

pytestmark = pytest.mark.long

STEPS = 15
STOPPED = 6
"""Steps after which a run is stopped."""
WORDS = (
    "train",
    "guess",
    f"rllm.trainer.total_batches={STEPS}",
    "rllm.rollout.n=4",
    "rllm.rollout.n_val=1",
    "rllm.trainer.test_freq=8",
    "rllm.trainer.save_freq=5",
    "data.train_batch_size=16",
)
# The sampler and both estimators keep state between steps.
STATEFUL = (
    "--sampler",
    "thompson",
    "rllm.algorithm.adv_estimator={name: mix, parts: [rae, spo]}",
    "data.train_batch_size=8",
)
# Some steps only collect groups. Collected groups must survive as well.
WAITING = ("--rejection", "episode", "rllm.rejection_sample.min_partial_solve_tasks=10", *STATEFUL)
# Several batches of tasks in one step, and groups left over.
FILLING = ("--rejection", "dynamic", "data.train_batch_size=4", "rllm.rejection_sample.max_gen_batches=4")


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


Uninterrupted = Callable[[tuple[str, ...]], tuple[Path, tuple[str, ...]]]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    """Return the directory of an undisturbed run with these terms, and its arguments. Made once."""
    return cache(partial(_uninterrupted, tmp_path_factory))


def _uninterrupted(tmp_path_factory: pytest.TempPathFactory, terms: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
    directory = tmp_path_factory.mktemp("uninterrupted")
    words = (*WORDS, *terms)
    subprocess.run([sys.executable, "-m", "rllm.cli.main", *words], cwd=directory, check=True, timeout=200)
    return directory / "runs" / "rllm-training" / "default", words


@pytest.mark.parametrize(
    ("number", "terms"),
    [
        (signal.SIGTERM, WAITING),
        (signal.SIGKILL, WAITING),
        pytest.param(signal.SIGINT, (), marks=pytest.mark.long),
    ],
    ids=["SIGTERM, groups waiting", "SIGKILL, groups waiting", "SIGINT"],
)
def test_a_run_stopped_by_a_signal_and_resumed_ends_as_if_it_had_not_been(
    uninterrupted: Uninterrupted,
    number: signal.Signals,
    terms: tuple[str, ...],
    start_forked_rllm: Any,
    forked_rllm: Any,
    tmp_path: Path,
) -> None:
    reference, words = uninterrupted(terms)
    run = tmp_path / "runs" / "rllm-training" / "default"
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
    assert "resuming after step" in resumed.stdout
    assert weights(run) == weights(reference)
    assert metrics(run) == metrics(reference)


def test_killed_fine_tuning_ends_as_if_uninterrupted(start_forked_rllm: Any, forked_rllm: Any, tmp_path: Path) -> None:
    turn = '{"role": "user", "content": "%d plus 1 is"}, {"role": "assistant", "content": "%d"}'
    row = f'{{"messages": [{turn}, {turn}]}}'
    for name, numbers in (("train", range(16)), ("val", range(16, 20))):
        rows = [row % (number, number + 1, number + 1, number + 2) for number in numbers]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    words = ("sft", "--data", "train.jsonl", "--val-data", "val.jsonl", "--train-on", "last")
    words += ("data.train_batch_size=4", "rllm.trainer.total_epochs=5", "rllm.trainer.save_freq=5")
    reference = forked_rllm(*words, "rllm.trainer.experiment_name=uninterrupted")
    assert reference.returncode == 0, reference.stderr
    process = start_forked_rllm(*words)
    runs = tmp_path / "runs" / "rllm-sft"
    wait_for_steps(runs / "default", STOPPED, process)
    process.kill()
    process.communicate(timeout=200)
    # The run's own values, such as the data and the trained tokens, need not be repeated.
    resumed = forked_rllm("sft", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert weights(runs / "default") == weights(runs / "uninterrupted")
    assert metrics(runs / "default") == metrics(runs / "uninterrupted")


@pytest.fixture
def killed_and_resumed(
    rllm: Any, start_forked_rllm: Any, forked_rllm: Any, tmp_path: Path
) -> Callable[..., tuple[Path, Path]]:
    """Return the directories of a run that is killed and resumed, and of the same run undisturbed."""

    def make(*terms: str) -> tuple[Path, Path]:
        words, runs = (*WORDS, *terms), tmp_path / "runs" / "rllm-training"
        uninterrupted = rllm(*words, "rllm.trainer.experiment_name=uninterrupted")
        assert uninterrupted.returncode == 0, uninterrupted.stderr
        process = start_forked_rllm(*words)
        wait_for_steps(runs / "default", STOPPED, process)
        process.kill()
        process.communicate(timeout=200)
        resumed = forked_rllm(*words, "--resume")
        assert resumed.returncode == 0, resumed.stderr
        return runs / "default", runs / "uninterrupted"

    return make


@pytest.mark.long
def test_a_killed_run_with_a_critic_and_a_reference_model_ends_as_if_it_had_not_been(killed_and_resumed: Any) -> None:
    """The reference is the run's first model, not the checkpoint's. Old log-probs are recomputed."""
    terms = ("--estimator", "gae", "rllm.algorithm.kl_beta=0.01", "rllm.algorithm.rollout_correction.tis_mode=token")
    run, reference = killed_and_resumed(*terms)
    assert set(weights(run)) == {"critic.safetensors", "model.safetensors", "optimizer.safetensors"}
    assert weights(run) == weights(reference)
    assert metrics(run) == metrics(reference)
    assert all(line["actor/kl_ref"] >= 0 for line in metrics(run) if "actor/loss" in line)


@pytest.mark.long
def test_killed_asynchronous_run_with_state_resumes_exactly(killed_and_resumed: Any) -> None:
    ahead = ("rllm.async_training.enable=true", "rllm.async_training.staleness_threshold=2")
    run, reference = killed_and_resumed(*STATEFUL, *ahead)
    assert weights(run) == weights(reference)
    assert metrics(run) == metrics(reference)


@pytest.mark.long
def test_a_killed_run_with_an_adapter_ends_as_if_it_had_not_been(killed_and_resumed: Any) -> None:
    run, reference = killed_and_resumed("model.lora_rank=8", "model.dtype=bfloat16", "rllm.algorithm.kl_beta=0.01")
    assert set(weights(run)) == {"adapter_model.safetensors", "optimizer.safetensors"}
    assert weights(run) == weights(reference)
    assert metrics(run) == metrics(reference)


@pytest.mark.long
def test_a_killed_run_that_fills_its_batches_ends_as_if_it_had_not_been(killed_and_resumed: Any) -> None:
    run, reference = killed_and_resumed(*FILLING)
    assert weights(run) == weights(reference)
    assert metrics(run) == metrics(reference)
    assert max(line.get("batch/rollout_batches", 0) for line in metrics(run)) > 1


def test_same_seed_gives_the_same_run(uninterrupted: Uninterrupted, forked_rllm: Any, tmp_path: Path) -> None:
    reference, words = uninterrupted(WAITING)
    again = forked_rllm(*words, "rllm.trainer.experiment_name=again")
    assert again.returncode == 0, again.stderr
    runs = tmp_path / "runs" / "rllm-training"
    assert weights(runs / "again") == weights(reference)
    assert metrics(runs / "again") == metrics(reference)


def test_a_damaged_checkpoint_is_passed_over_and_it_is_said(
    uninterrupted: Uninterrupted, forked_rllm: Any, tmp_path: Path
) -> None:
    reference, words = uninterrupted(WAITING)
    run = tmp_path / "runs" / "rllm-training" / "default"
    shutil.copytree(reference, run, symlinks=True)
    latest = (run / "checkpoints" / "latest").resolve()
    file = latest / "backend" / "model" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)

    resumed = forked_rllm(*words, "--resume")

    assert resumed.returncode == 0, resumed.stderr
    check_values(resumed.stderr, latest.name, "damaged (backend/model/model.safetensors")
    assert f"resuming after step {STEPS - 5} of {STEPS}" in resumed.stdout
    assert weights(run) == weights(reference)
    assert metrics(run) == metrics(reference)
