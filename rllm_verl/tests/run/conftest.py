"""One small Ray cluster for all tests of this directory, with logical GPUs, and commands with their own clusters."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

os.environ["VERL_PLATFORM"] = "cpu"
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

RLLM = str(Path(sys.executable).with_name("rllm"))
RUN = Path("runs", "rllm-training", "sum-1")
MARK = "RLLM_TEST_RUN"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of the cluster in one process, if pytest-xdist distributes groups."""
    for item in items:
        if item.path.parent == Path(__file__).parent and "ray_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("ray"))


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    import ray

    ray.init(
        num_cpus=8,
        num_gpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=200 * 2**20,
        runtime_env={
            "env_vars": {
                "VERL_PLATFORM": "cpu",
                "OMP_NUM_THREADS": "1",
                "TOKENIZERS_PARALLELISM": "false",
                "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            }
        },
    )
    yield
    ray.shutdown()


@pytest.fixture
def rllm(ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run `rllm WORDS` in this process and an empty directory, on its cluster. Returns what it printed.

    Workers of the cluster have another working directory, so runs get an absolute path.
    """
    from rllm.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLLM_BLOCK_PLUGINS", "rllm-view")

    def run(*words: str) -> str:
        if words[0] in ("train", "sft", "prefer"):
            words = (*words, f"rllm.trainer.output_dir={tmp_path / 'runs'}")
        output, errors = io.StringIO(), io.StringIO()
        with redirect_stdout(output), redirect_stderr(errors):
            code = main(words)
        assert code == 0, errors.getvalue()
        return output.getvalue()

    return run


@dataclass(frozen=True)
class Run:
    """`rllm train` in its own process, and all processes that it started."""

    directory: Path
    process: subprocess.Popen[bytes]
    mark: str

    def read_output(self) -> str:
        return (self.directory / f"{self.mark}.txt").read_text()

    def steps(self) -> list[dict[str, Any]]:
        return [step for run in self.directory.glob("runs/rllm-training/*") for step in training_steps(run)]

    def alive(self) -> list[psutil.Process]:
        """Processes that inherited this run's environment."""
        return [process for process in psutil.process_iter() if _mark_of(process) == self.mark]

    def wait_until(self, condition: Callable[[], bool], seconds: float = 200) -> None:
        """Wait for a condition that the run fulfills before it ends."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.read_output()
            assert self.process.poll() is None, self.read_output()
            time.sleep(0.05)

    def wait_until_nothing_is_alive(self, seconds: float = 100) -> None:
        deadline = time.monotonic() + seconds
        while alive := self.alive():
            assert time.monotonic() < deadline, alive
            time.sleep(0.1)


@contextmanager
def training(directory: Path, *words: str) -> Iterator[Run]:
    """Start a run with the backend verl. At the end, its processes are killed."""
    mark = uuid.uuid4().hex
    command = [RLLM, "train", words[0], "rllm/backend=verl", "--profile", "cpu", *words[1:]]
    with (directory / f"{mark}.txt").open("wb") as file:
        process = subprocess.Popen(
            command, cwd=directory, env=os.environ | {MARK: mark}, stdout=file, stderr=subprocess.STDOUT
        )
    run = Run(directory, process, mark)
    try:
        yield run
    finally:
        for left in run.alive():
            left.kill()
        process.wait()


def training_steps(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of each training step, without times."""
    file = run / "metrics.jsonl"
    lines = map(json.loads, file.read_text().splitlines() if file.exists() else ())
    return [
        {name: value for name, value in line.items() if not name.startswith("time/")}
        for line in lines
        if "actor/loss" in line
    ]


def _mark_of(process: psutil.Process) -> str | None:
    try:
        # A process that has ended but was not waited for is not alive.
        return None if process.status() == psutil.STATUS_ZOMBIE else process.environ().get(MARK)
    except psutil.Error:
        return None
