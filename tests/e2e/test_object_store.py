"""Runs whose directory is in a real server of the S3 API: killed machines, and a server that is away."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from s3_server import S3Server, s3_server

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

STEPS = 24
WORDS = (
    "train",
    "guess",
    f"rllm.trainer.total_batches={STEPS}",
    "rllm.rollout.n=4",
    "rllm.rollout.n_val=1",
    "rllm.trainer.test_freq=6",
    "rllm.trainer.save_freq=2",
    "data.train_batch_size=8",
    "rllm.record=tokens",
)
AHEAD = ("rllm.async_training.enable=true", "rllm.async_training.staleness_threshold=2")
NAME = "runs/rllm-training/guess-1"
DEADLINE = 300
Start = Callable[..., "Program"]


@pytest.fixture
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture
def start(server: S3Server, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts `rllm` on a machine with a name. Its output is in a file."""
    processes = []

    def start(*words: str, machine: str = "first", **environ: str) -> Program:
        output = tmp_path / f"output-{len(processes)}"
        with output.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "rllm.cli.main", *words],
                cwd=tmp_path,
                env=server.environment(tmp_path / machine) | environ,
                stdout=file,
                stderr=file,
            )
        processes.append(process)
        return Program(process, output)

    yield start
    for process in processes:
        process.kill()
        process.wait()


class Program(NamedTuple):
    """A running program."""

    process: subprocess.Popen[bytes]
    output: Path

    def finish(self, *codes: int) -> str:
        """Wait for the program to end with one of the codes, or with 0, and return its output."""
        assert self.process.wait(DEADLINE) in (codes or (0,)), self.output.read_text()
        return self.output.read_text()

    def wait_until(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition is true while the program runs."""
        end = time.monotonic() + DEADLINE
        while not condition():
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < end
            time.sleep(0.05)


def working(machine: Path) -> Path:
    return machine / "runs" / "s3" / "bucket" / NAME


def steps_of(run: Path) -> int:
    file = run / "metrics.jsonl"
    return sum('"actor/loss"' in line for line in file.read_text().splitlines()) if file.exists() else 0


def results(run: Path) -> dict[str, Any]:
    """Return the weights, the record and the metrics without times."""
    files = [*(run / "checkpoints" / "latest" / "backend").rglob("*.safetensors"), *(run / "record").rglob("*.parquet")]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics = [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]
    contents = {f"{path.parent.name}/{path.name}": path.read_bytes() for path in files}
    assert len(contents) > 3 * STEPS
    return {**contents, "metrics": metrics}


def unequal_objects(server: S3Server, run: Path) -> list[str]:
    """Return the names of files that are different in the store, or missing."""
    files = [path for path in run.rglob("*") if path.is_file() and "/latest/" not in str(path)]
    names = [str(path.relative_to(run)) for path in files if path.name[0] != "."]
    assert len(names) > 20
    return [name for name in names if server.read(f"{NAME}/{name}") != (run / name).read_bytes()]


def stored_checkpoints(server: S3Server) -> list[int]:
    """Return the whole checkpoints in the store."""
    names = {step: f"{NAME}/checkpoints/step_{step:06d}/manifest.json" for step in range(2, STEPS, 2)}
    return [step for step, name in names.items() if server.read(name)]


@pytest.mark.parametrize("terms", [(), AHEAD], ids=["synchronous", "ahead"])
def test_run_of_a_lost_machine_ends_bit_equal(
    server: S3Server, start: Start, tmp_path: Path, terms: tuple[str, ...]
) -> None:
    words, url = (*WORDS, *terms), f"rllm.trainer.output_dir={server.url}"
    reference = start(*words)
    process = start(*words, url)
    process.wait_until(lambda: stored_checkpoints(server))
    process.process.kill()
    process.process.wait()
    shutil.rmtree(tmp_path / "first")

    output = start(*words, url, "--resume", machine="second").finish()

    assert "resuming after " in output
    assert "resuming after 0" not in output
    reference.finish()
    assert results(working(tmp_path / "second")) == results(tmp_path / NAME)
    assert unequal_objects(server, working(tmp_path / "second")) == []


@pytest.mark.parametrize(("failure", "seconds"), [("hanging", 0), ("refusing", 0), ("refusing", 60)])
def test_run_continues_while_the_server_is_away(
    server: S3Server, start: Start, tmp_path: Path, failure: str, seconds: int
) -> None:
    reference = start(*WORDS)
    process = start(*WORDS, f"rllm.trainer.output_dir={server.url}")
    run = working(tmp_path / "first")
    process.wait_until(lambda: stored_checkpoints(server))
    with getattr(server, failure)():
        before = steps_of(run)
        process.wait_until(lambda: steps_of(run) >= min(before + 5, STEPS))
        time.sleep(seconds)
    output = process.finish()
    reference.finish()
    assert results(run) == results(tmp_path / NAME)
    assert unequal_objects(server, run) == []
    assert ("cannot be written" in output) == ("can be written again, and has all files" in output)


def test_stopped_process_changes_no_new_objects(server: S3Server, start: Start, tmp_path: Path) -> None:
    url = f"rllm.trainer.output_dir={server.url}"
    process = start(*WORDS, url)
    weights = f"{NAME}/checkpoints/step_000004/backend/"
    process.wait_until(lambda: any(name.startswith(weights) for name in server.names()))
    process.process.send_signal(signal.SIGSTOP)
    output = start(*WORDS, url, "--resume", machine="second").finish()
    assert "to see if the run on" in output
    before = {name: server.read(name) for name in server.names()}
    process.process.send_signal(signal.SIGCONT)
    assert "error[locked-directory]" in process.finish(1)
    assert {name: server.read(name) for name in server.names()} == before


def test_stopped_run_is_read_by_its_url(server: S3Server, start: Start, tmp_path: Path) -> None:
    url = f"rllm.trainer.output_dir={server.url}"
    process = start(*WORDS, url)
    process.wait_until(lambda: steps_of(working(tmp_path / "first")) > 2)
    process.process.send_signal(signal.SIGINT)
    assert "saved in" in process.finish(130)
    assert unequal_objects(server, working(tmp_path / "first")) == []

    def read(*words: str, codes: tuple[int, ...] = ()) -> str:
        return start(*words, machine="second").finish(*codes)

    place = f"s3://bucket/{NAME}"
    assert "stopped" in read("runs", "list", server.url)
    assert "stopped" in read("runs", "status", place)
    assert " rules" in read("doctor", place, codes=(0, 1))
    read("view", place, "--static", "run.html")
    assert (tmp_path / "run.html").stat().st_size > 50_000
    export = start("export", place, "--to", "hf", "--output", "exported", machine="second")
    check = start("record", "check", place, machine="second")
    for _ in range(2):
        read("runs", "status", place)
    export.finish()
    assert (tmp_path / "exported" / "model.safetensors").exists()
    assert "equals the updates" in check.finish()
    assert "run-exists" in read("train", "guess", url, "rllm.trainer.experiment_name=guess-1", codes=(2,))
    assert "resuming after " in start(*WORDS, url, "--resume", machine="third").finish()


def test_wrong_bucket_and_credentials_are_reported_before_training(
    server: S3Server, start: Start, tmp_path: Path
) -> None:
    wrong = start("train", "guess", "rllm.trainer.output_dir=s3://no-such-bucket/runs")
    output = wrong.finish(1)
    assert "error[service-unreachable]: s3://no-such-bucket/runs" in output
    assert "aws s3 mb s3://no-such-bucket" in output
    nobody = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"}
    output = start("train", "guess", f"rllm.trainer.output_dir={server.url}", **nobody).finish(1)
    assert "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in output
    assert not list(tmp_path.rglob("metrics.jsonl"))
