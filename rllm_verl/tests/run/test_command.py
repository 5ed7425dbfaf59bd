"""`rllm train … rllm/backend=verl --profile cpu` as a user runs it: it learns, and continues after it was killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from expecting import check_values

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

STEPS = 14
RESUMED = 9
"""Steps of the run that is killed after step 7."""
WORDS = (
    "train",
    "sum",
    "rllm/backend=verl",
    "--profile",
    "cpu",
    # Four tasks, which a few large steps are enough for.
    "rllm.env.env_args.largest=1",
    "actor_rollout_ref.actor.optim.lr=0.003",
    "training.num_minibatches=4",
    f"rllm.trainer.total_batches={STEPS}",
    "rllm.record=tokens",
    "rllm.trainer.save_freq=5",
    "rllm.trainer.test_freq=-1",
    "rllm.trainer.val_before_train=false",
)
MARK = "RLLM_TEST_RUN"
LOGPROB_DIFFERENCE = "actor/rollout_logprob_difference"
DEPENDS_ON_ARRIVAL = (LOGPROB_DIFFERENCE, "rollout_corr/")
"""The last bits of the rollout's log-probs depend on the requests that share a forward pass."""


@dataclass
class Run:
    """One command, and all processes that it started."""

    process: subprocess.Popen[bytes]
    mark: str
    said: Path

    @classmethod
    def begin(cls, directory: Path, *words: str) -> Run:
        mark = uuid.uuid4().hex
        command = [str(Path(sys.executable).with_name("rllm")), *WORDS, *words]
        said = directory / f"{mark}.txt"
        with said.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=directory, env=os.environ | {MARK: mark}, stdout=file, stderr=subprocess.STDOUT
            )
        return cls(process, mark, said)

    def alive(self) -> list[psutil.Process]:
        """Processes that inherited this run's environment."""
        return [process for process in psutil.process_iter() if _mark_of(process) == self.mark]

    def end(self) -> str:
        """Wait for the command; returns what it said."""
        self.process.wait(timeout=500)
        return self.said.read_text()

    def wait_until_nothing_is_alive(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while alive := self.alive():
            assert time.monotonic() < deadline, [process.name() for process in alive]
            time.sleep(0.2)

    def kill_all(self) -> None:
        for process in self.alive():
            process.kill()
        self.process.wait()


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except psutil.Error:
        return None


def metrics(directory: Path) -> list[dict[str, Any]]:
    """What was logged of each step, without times."""
    file = directory / "runs" / "rllm-training" / "default" / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]


def check_record(directory: Path) -> subprocess.CompletedProcess[str]:
    """`rllm record check` of the run in a directory."""
    command = [str(Path(sys.executable).with_name("rllm")), "record", "check", "runs/rllm-training/default"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)


def change_a_log_prob(traces: Path) -> tuple[int, int]:
    """Of the first token that has a coefficient. Returns its step and optimizer step."""
    for file in sorted(traces.iterdir()):
        with pq.ParquetFile(file) as opened:
            table = opened.read()
        rows = table.to_pylist()
        for row in rows:
            if row["policy_part"][0]:
                row["logprob"][0] -= 0.05
                pq.write_table(pa.Table.from_pylist(rows, table.schema), file)
                return int(file.stem.removeprefix("step_")), row["optimizer_step"]
    raise AssertionError("no token has a coefficient")


def without_arrival(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if not name.startswith(DEPENDS_ON_ARRIVAL)} for line in lines]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a run that was not disturbed."""
    directory = tmp_path_factory.mktemp("finished")
    run = Run.begin(directory)
    try:
        said = run.end()
        assert run.process.returncode == 0, said
        run.wait_until_nothing_is_alive(seconds=100)
    finally:
        run.kill_all()
    yield directory


def test_the_reward_rises(finished: Path) -> None:
    solved = [line["batch/solved"] for line in metrics(finished) if "batch/solved" in line]
    assert len(solved) == STEPS
    assert sum(solved[:3]) / 3 < 0.1
    assert sum(solved[-3:]) / 3 > 0.12, "chance is 0.016; how far a run gets in these steps is its seed's"


def test_trainer_and_rollouts_have_the_same_weights_in_every_step(finished: Path) -> None:
    differences = [line[LOGPROB_DIFFERENCE] for line in metrics(finished) if LOGPROB_DIFFERENCE in line]
    assert len(differences) == STEPS
    assert max(differences) < 1e-5


def test_the_losses_of_verl_follow_from_the_record(finished: Path) -> None:
    checked = check_record(finished)
    check_values(checked.stdout, f"{8 * STEPS} optimi", f"{STEPS} steps")
    assert checked.returncode == 0


def test_a_log_prob_that_was_changed_in_the_record_is_named_by_its_step(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "runs", tmp_path / "runs")
    step, optimizer_step = change_a_log_prob(tmp_path / "runs/rllm-training/default/record/traces")

    checked = check_record(tmp_path)

    changed, *named, _ = checked.stdout.splitlines()
    where = f"step {step}, optimizer step {optimizer_step}"
    assert changed.startswith(f"step {step}: traces/")
    assert named
    assert all(line.startswith(where) for line in named)
    assert checked.returncode == 1


def test_a_checkpoints_model_scores_equally_with_another_backend(finished: Path) -> None:
    checkpoint = finished / "runs" / "rllm-training" / "default" / "checkpoints" / "latest"
    command = [
        str(Path(sys.executable).with_name("rllm")),
        "eval",
        "sum",
        "--backend",
        "local",
        "--model",
        str(checkpoint),
    ]
    ended = subprocess.run(
        [*command, "rllm.env.env_args.largest=1"],
        cwd=finished,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    last = next(line for line in reversed(metrics(finished)) if "val/sum/pass@1" in line)
    assert f"{last['val/sum/pass@1']:.3f}" in ended.stdout


def test_killed_run_resumes_exactly_and_leaves_no_process(finished: Path, tmp_path: Path) -> None:
    shorter = f"rllm.trainer.total_batches={RESUMED}"
    first = Run.begin(tmp_path, shorter)
    try:
        deadline = time.monotonic() + 200
        while len(metrics(tmp_path)) < 7:
            assert time.monotonic() < deadline
            assert first.process.poll() is None, first.said.read_text()
            time.sleep(0.05)
        first.process.kill()
        first.process.wait()
        second = Run.begin(tmp_path, shorter, "--resume")
        # Two of Ray's processes would live for more than a minute. The next run kills them before it starts Ray.
        first.wait_until_nothing_is_alive(seconds=40)
    finally:
        first.kill_all()
    try:
        said = second.end()
        assert second.process.returncode == 0, said
        second.wait_until_nothing_is_alive(seconds=100)
    finally:
        second.kill_all()
    ended, undisturbed = ([line for line in metrics(run) if "batch/solved" in line] for run in (tmp_path, finished))
    assert len(ended) == RESUMED
    assert without_arrival(ended) == without_arrival(undisturbed[:RESUMED])
    for resumed, whole in zip(ended, undisturbed[:RESUMED], strict=True):
        near = {name: value for name, value in whole.items() if name.startswith(DEPENDS_ON_ARRIVAL)}
        assert {name: resumed[name] for name in near} == pytest.approx(near, abs=1e-5)
    assert check_record(tmp_path).returncode == 0
