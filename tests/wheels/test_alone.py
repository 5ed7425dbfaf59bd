"""Each distribution by itself, with nothing but what it asks for; then the example on its page."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from workspace import Distribution, distributions

from .environments import Environment

OTHER_TESTS = {"rllm-vllm": "make test-vllm"}
"""Distribution -> what tries its example."""
ONE_STEP = (
    "rllm.trainer.total_batches=1",
    "rllm.rollout.n=2",
    "data.train_batch_size=2",
    "data.max_response_length=4",
    "rllm.trainer.val_before_train=false",
    "rllm.trainer.test_freq=-1",
)
OWN_DIRECTORY = ("training.default_local_dir=kept",)
ADDED = {
    "rllm-tinker": OWN_DIRECTORY,
    "rllm-tinker-server": OWN_DIRECTORY,
    # Starting Ray takes half a minute.
    "rllm-verl": ("--dry-run",),
}
"""Distribution -> what is added to `rllm train` as well."""


@pytest.mark.parametrize("distribution", distributions(), ids=lambda each: each.name)
def test_it_works_alone(distribution: Distribution, dist: Path, tmp_path: Path) -> None:
    # The doctor is in the program.
    environment = Environment.make(tmp_path / "venv", dist, [distribution.name, "rllm"])

    for package in distribution.packages:
        done = environment.run(["python", "-W", "error", "-c", f"import {package.name}"], tmp_path)
        assert done.returncode == 0, done.stderr
    done = environment.run(["rllm", "plugins", "doctor"], tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "distribution", [each for each in distributions() if each.name not in OTHER_TESTS], ids=lambda each: each.name
)
def test_the_example_on_its_page_works(
    distribution: Distribution, with_line: Callable[[tuple[str, ...]], Environment], tmp_path: Path
) -> None:
    install, lines = distribution.example
    environment = with_line(tuple(install))
    for line in lines:
        if line.startswith("rllm train "):
            added = [*ONE_STEP, *ADDED.get(distribution.name, ())]
            line = shlex.join([*shlex.split(line, comments=True), *added])
        done = environment.run_line(line, tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
