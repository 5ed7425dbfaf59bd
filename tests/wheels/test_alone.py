"""Each distribution with only its requirements, then the example on its page."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from workspace import Distribution, distributions

from .environments import Environment, packages, same_process

OTHER_TESTS = {"rllm-vllm": "make test-vllm"}
"""Distribution -> commands that run its example."""
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
"""Distribution -> further arguments of `rllm train`."""


def install_line(distribution: Distribution) -> tuple[str, ...]:
    """Return the arguments of ``pip install``. The doctor is in the program."""
    return (distribution.name, "rllm")


def examples() -> list[ParameterSet]:
    """Return the install line and commands of each page. Equal pages are tested once."""
    found: dict[tuple[str, tuple[str, ...]], Distribution] = {}
    for each in distributions():
        if each.name not in OTHER_TESTS:
            install, lines = each.example
            code = tuple(shlex.join(shlex.split(line, comments=True)) for line in lines)
            found.setdefault((packages(install), code), each)
    return [pytest.param(each, marks=same_process(each.example[0]), id=each.name) for each in found.values()]


@cache
def problems_of(environment: Environment) -> str:
    """Text that the doctor prints if it finds an error."""
    done = environment.run(["rllm", "plugins", "doctor"], environment.directory.parent)
    return done.stdout if done.returncode else ""


@pytest.mark.parametrize(
    "distribution",
    [pytest.param(each, marks=same_process(install_line(each)), id=each.name) for each in distributions()],
)
def test_it_works_with_only_its_requirements(
    distribution: Distribution, with_line: Callable[[tuple[str, ...]], Environment], tmp_path: Path
) -> None:
    environment = with_line(install_line(distribution))

    for package in distribution.packages:
        done = environment.run(["python", "-W", "error", "-c", f"import {package.name}"], tmp_path)
        assert done.returncode == 0, done.stderr
    assert not problems_of(environment)


@pytest.mark.parametrize("distribution", examples())
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
