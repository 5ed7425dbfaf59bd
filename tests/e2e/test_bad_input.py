"""Errors after a user's mistake, and that no file is lost."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
from expecting import check_printed
from written_distribution import write_distribution

STEPS = "rllm.trainer.total_batches=4"
FAST = (
    STEPS,
    "rllm.rollout.n=2",
    "rllm.rollout.n_val=1",
    "rllm.trainer.val_before_train=false",
    "data.train_batch_size=8",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, command_server: Any) -> Path:
    """Return the directory of one finished `rllm train guess`."""
    directory = tmp_path_factory.mktemp("made")
    process = command_server.start("rllm.cli.main", ("train", "guess", *FAST), directory, dict(os.environ))
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    return directory


@pytest.fixture
def finished_run(made: Path, tmp_path: Path) -> Path:
    """Return the directory of a finished run. Commands of the test use it."""
    shutil.copytree(made, tmp_path, symlinks=True, dirs_exist_ok=True)
    return tmp_path / "runs" / "rllm-training" / "guess-1"


@pytest.mark.parametrize(
    ("words", "code", "values"),
    [
        (["gess"], "unknown-plugin", ["'gess'", "'guess'"]),
        (["guess", "--estimator", "grop"], "unknown-plugin", ["rllm.algorithm.adv_estimator", "'grop'", "'grpo'"]),
        (["guess", "--backend", "verl"], "missing-package", ["pip install 'rllm-verl[vllm]'", "--profile cpu"]),
        (["guess", "--role-estimator", "solver"], "usage-error", ["--role-estimator", "'solver'", "ROLE=NAME"]),
        (["guess", "--role-estimator", "=grpo"], "usage-error", ["--role-estimator", "'=grpo'", "ROLE=NAME"]),
        (
            ["guess", "--role-estimator", "a=grpo", "--role-estimator", "a=rloo"],
            "usage-error",
            ["--role-estimator", "'a'"],
        ),
        (["guess", "rllm.rollout.n=many"], "wrong-value", ['`rllm.rollout.n` is "many" (from command line)']),
        (["guess", "--config", "absent.yaml"], "file-not-found", ["`absent.yaml`"]),
        (["guess", "--config", "config.yaml"], "plugin-of-other-program", ["workflow 'in-process/adder'"]),
        (["guess", "--resume", "--overwrite"], "usage-error", ["--resume", "--overwrite"]),
        (["guess", "--model", "./no-such"], "model-not-loadable", ["model.name='./no-such'", "`tiny`"]),
        (["guess", "--model", "."], "model-not-loadable", ["model.name='.'", "config.json"]),
        (["guess", "--model", "./config.yaml"], "model-not-loadable", ["model.name='./config.yaml'", "a file"]),
        ([], "no-environment", ["`rllm train"]),
    ],
)
def test_mistake_on_command_line_is_explained(
    rllm_here: Any, tmp_path: Path, words: list[str], code: str, values: list[str]
) -> None:
    (tmp_path / "config.yaml").write_text("rllm: {workflow: {name: in-process/adder}}\n")
    result = rllm_here("train", *words)
    check_printed(result.stderr, code, *values)
    assert result.stderr.startswith("error[")
    assert "Traceback" not in result.stderr
    assert result.returncode == 2


def test_a_directory_that_cannot_be_written_is_named(rllm_here: Any, tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    result = rllm_here("train", "guess", *FAST)
    values = ("runs/rllm-training/guess-1", os.strerror(errno.ENOTDIR), "rllm.trainer.output_dir=DIRECTORY")
    check_printed(result.stderr, "not-writable", *values)
    assert result.returncode == 1


@pytest.mark.long
def test_a_full_disk_while_saving_loses_nothing(start_forked_rllm: Any, forked_rllm: Any, finished_run: Path) -> None:
    checkpoints = finished_run / "checkpoints"
    before = {path.name for path in checkpoints.iterdir()}

    process = start_forked_rllm("train", "guess", *FAST, "--resume", "rllm.trainer.total_batches=6")
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))  # The model's weights are larger.
    _, errors = process.communicate()
    assert process.returncode == 1
    check_printed(errors, "not-writable", "6 steps", "step_000004", "--resume")
    assert {path.name for path in checkpoints.iterdir()} == before
    resumed = forked_rllm("train", "guess", *FAST, "--resume", "rllm.trainer.total_batches=6")
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming after 4 of 6 steps" in resumed.stdout


BAD_ENVIRONMENTS = """
import time
from rllm_core.contracts.environment import Environment, EnvironmentPlugin, Outcome
from rllm_core.contracts.params import NoParams
from rllm_core.plugins import hookimpl

def make(name):
    from rllm_core.data.types import Task

    class Bad(Environment):
        def __init__(self, params):
            self.number = 0
        @classmethod
        def tasks(cls, split, params):
            return [Task(id=f"t{i}", data={"number": i}) for i in range(2)]
        def reset(self, task):
            self.number = task["number"]
            return "guess"
        def step(self, action):
            if name == "raises" and self.number == 1:
                raise RuntimeError("the world has ended")
            if name == "hangs" and self.number == 1:
                time.sleep(60)
            return Outcome(reward=float("nan") if name == "nan" and self.number == 1 else 1.0, done=True)
    return Bad

@hookimpl
def rllm_environments():
    for name in ("raises", "hangs", "nan"):
        yield EnvironmentPlugin(name=name, summary="Bad.", load=lambda name=name: make(name))
"""


@pytest.fixture
def bad_environments(tmp_path: Path, environ: dict[str, str]) -> None:
    """Install a package with broken environments, next to the others."""
    site = tmp_path / "site"
    write_distribution(site, "bad-envs", BAD_ENVIRONMENTS)
    environ["PYTHONPATH"] = str(site)


def last_metrics(tmp_path: Path) -> dict[str, Any]:
    (file,) = tmp_path.glob("runs/rllm-training/*/metrics.jsonl")
    lines = file.read_text().splitlines()
    return next(line for line in map(json.loads, reversed(lines)) if "batch/episodes" in line)


QUICK = (
    "rllm.trainer.total_batches=1",
    "rllm.trainer.test_freq=-1",
    "rllm.trainer.val_before_train=false",
    "data.max_response_length=2",
    "rllm.rollout.n=2",
)


@pytest.mark.parametrize("limit", ["training.max_length=3", "data.max_prompt_length=1"])
def test_run_with_only_overlong_first_prompts_fails(rllm_here: Any, limit: str) -> None:
    """Otherwise it would make its steps, train on nothing, and end normally."""
    result = rllm_here("train", "sum", *QUICK, limit)
    assert result.returncode == 1
    check_printed(result.stderr, "prompt-too-long", "data.max_prompt_length")


@pytest.mark.smoke
@pytest.mark.usefixtures("bad_environments")
def test_failing_environment_fails_the_run_or_is_skipped(forked_rllm: Any, tmp_path: Path) -> None:
    result = forked_rllm("train", "raises", *QUICK, "rllm.trainer.test_freq=0")
    assert "Rollout 't1:" in result.stderr
    said = r"failed 3 times: RuntimeError: the world has ended \(\S+\.py, line \d+\)\."
    assert re.search(said, result.stderr)
    assert "rllm.workflow.raise_on_error=false" in result.stderr
    assert result.returncode == 1
    result = forked_rllm("train", "raises", *QUICK, "rllm.workflow.raise_on_error=false", "--overwrite")
    assert result.returncode == 0, result.stderr
    assert last_metrics(tmp_path)["batch/ended_error"] == 0.5


@pytest.mark.long
@pytest.mark.usefixtures("bad_environments")
def test_hanging_environment_is_cut_off_and_process_ends(forked_rllm: Any, tmp_path: Path) -> None:
    result = forked_rllm("train", "hangs", *QUICK, "rllm.agent.trajectory_timeout=2")
    assert result.returncode == 0, result.stderr
    assert last_metrics(tmp_path)["batch/ended_timeout"] == 0.5


@pytest.mark.long
@pytest.mark.usefixtures("bad_environments")
def test_non_numeric_reward_names_the_episode_by_default(forked_rllm: Any, tmp_path: Path) -> None:
    result = forked_rllm("train", "nan", *QUICK)
    check_printed(result.stderr, "missing-reward", "'t1:0'", "Bad.step (", "returned reward nan")
    assert "rllm.algorithm.on_missing_reward=drop or =zero" in result.stderr
    assert result.returncode == 1
    words = (*QUICK, "--overwrite", "rllm.algorithm.on_missing_reward=drop")
    assert forked_rllm("train", "nan", *words).returncode == 0
    assert last_metrics(tmp_path)["batch/missing_rewards"] == 2


@pytest.mark.smoke
def test_failed_start_keeps_the_run_to_replace(rllm_here: Any, finished_run: Path) -> None:
    run = finished_run
    (run / "notes.txt").write_text("mine")
    refused = rllm_here("train", "guess", *FAST, f"rllm.trainer.experiment_name={run.name}")
    assert refused.returncode == 2
    check_printed(refused.stderr, "run-exists", "--resume", "--overwrite")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert rllm_here("train", "guess", *FAST, "--overwrite", "--model", "./nope").returncode == 2

    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert rllm_here("train", "guess", *FAST, "--overwrite").returncode == 0
    assert (run / "notes.txt").read_text() == "mine"


@pytest.mark.long
def test_rejected_resume_does_not_spoil_next_one(rllm_here: Any, finished_run: Path) -> None:
    for words, values in (
        (["guess", "--seed", "3"], ["rllm.trainer.seed=0", "3"]),
        (["sum", f"rllm.trainer.experiment_name={finished_run.name}"], ["Training tasks"]),
        (["guess", "--model", "./nope"], ["model.name", "tiny", "./nope"]),
    ):
        refused = rllm_here("train", *words, "--resume", "rllm.trainer.total_batches=5")
        check_printed(refused.stderr, "run-changed", *values)
    resumed = rllm_here("train", "guess", "--resume", "rllm.trainer.total_batches=5")
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming after 4 of 5 steps" in resumed.stdout
