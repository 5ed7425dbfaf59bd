"""A resumed run prints and writes at its end the same as a run that was never stopped."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from expecting import check_values

from .test_resume import metrics, wait_for_steps, weights

pytestmark = pytest.mark.long

WORDS = (
    "train",
    "guess",
    "--estimator",
    "rloo",
    "rllm.rollout.n=4",
    "rllm.rollout.n_val=2",
    "rllm.trainer.test_freq=-1",
    "rllm.trainer.save_freq=3",
    "data.train_batch_size=8",
    "rllm.algorithm.eps_clip=0.2",  # The default, but set by a user.
    "rllm.algorithm.warmup_steps_ratio=0",  # a share of the length of the run, which differs here
)
RUNS = Path("runs/rllm-training")
OWN = ("rllm.trainer.experiment_name", "rllm.trainer.total_batches")


def table_of(output: str) -> list[str]:
    """Return the rows of the last validation's table."""
    _, title, rest = output.rpartition("validation, 2 rollouts per task")
    assert title
    return [line.split() for line in rest.splitlines() if line.startswith(("│", "|"))]


def values_of(dry_run: str) -> dict[str, str]:
    _, _, config = dry_run.partition("\nConfig")
    lines = (re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in config.splitlines()[2:] if line)
    return {line[0]: line[1] for line in lines if line[0] not in OWN}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, command_server: Any) -> tuple[Path, int]:
    """Return the directory of a run stopped by Ctrl-C with many steps left, and its number of finished steps."""
    directory: Path = tmp_path_factory.mktemp("stopped")
    words = (*WORDS, "rllm.trainer.total_batches=500")
    process = command_server.start(
        "rllm.cli.main", words, directory, os.environ | {"RLLM_BLOCK_PLUGINS": "rllm-view", "COLUMNS": "200"}
    )
    wait_for_steps(directory / RUNS / "guess-1", 4, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=200)
    (steps,) = re.findall(r"stopped after (\d+) of 500 steps", output)
    return directory, int(steps)


@pytest.fixture
def stopped_after(stopped: tuple[Path, int], tmp_path: Path) -> int:
    """Copy that run into the test's directory, and return its number of finished steps."""
    directory, steps = stopped
    shutil.copytree(directory, tmp_path, symlinks=True, dirs_exist_ok=True)
    return steps


def test_resumed_run_ends_like_an_undisturbed_run(stopped_after: int, forked_rllm: Any, tmp_path: Path) -> None:
    steps = stopped_after + 3
    resumed = forked_rllm("train", "guess", "--resume", f"rllm.trainer.total_batches={steps}")
    assert resumed.returncode == 0, resumed.stderr
    words = (*WORDS, "rllm.trainer.experiment_name=undisturbed", f"rllm.trainer.total_batches={steps}")
    undisturbed = forked_rllm(*words)
    assert undisturbed.returncode == 0, undisturbed.stderr

    ours, theirs = tmp_path / RUNS / "guess-1", tmp_path / RUNS / "undisturbed"
    assert metrics(ours) == metrics(theirs)
    assert [line["step"] for line in metrics(ours) if "val/guess/pass@1" in line] == [-1, steps - 1]
    assert weights(ours) == weights(theirs)
    assert table_of(resumed.stdout) == table_of(undisturbed.stdout) != []
    check_values(resumed.stdout, f"{steps} steps, ", " 3 of them")
    assert f"{steps} steps in " in undisturbed.stdout
    assert json.loads((ours / "plugins.json").read_text()) == json.loads((theirs / "plugins.json").read_text())
    names = [{path.name for path in run.iterdir()} for run in (ours, theirs)]
    assert names[0] == names[1]

    # Once more: nothing is validated or written twice, and a value that trains no step is not stored.
    config = (ours / "config.yaml").read_text()
    again = forked_rllm("train", "guess", "--resume", f"rllm.trainer.total_batches={steps}", "rllm.rollout.n=2")
    assert again.returncode == 0, again.stderr
    assert (ours / "config.yaml").read_text() == config
    assert table_of(again.stdout) == table_of(undisturbed.stdout)
    assert metrics(ours) == metrics(theirs)


def test_dry_run_of_resumed_run_shows_first_origins(stopped_after: int, forked_rllm: Any, tmp_path: Path) -> None:
    total = f"rllm.trainer.total_batches={stopped_after + 1}"
    resumed = forked_rllm("train", "guess", "--resume", total, "--dry-run")
    assert resumed.returncode == 0, resumed.stderr
    words = (*WORDS, "rllm.trainer.experiment_name=undisturbed", total, "--dry-run")
    first, again = values_of(forked_rllm(*words).stdout), values_of(resumed.stdout)
    assert again == first
    assert sum(value.endswith("command line") for value in again.values()) == 9
    assert again["rllm.env.env_args.prompt"].endswith("recipe guess local/tiny")

    # An edited configuration shows no origins, because the edit is a further origin.
    config = tmp_path / RUNS / "guess-1" / "config.yaml"
    config.write_text(config.read_text().replace("test_freq: -1", "test_freq: 7"))
    edited = values_of(forked_rllm("train", "guess", "--resume", total, "--dry-run").stdout)
    assert edited["rllm.trainer.test_freq"].split() == ["7", "runs/rllm-training/guess-1/config.yaml"]
