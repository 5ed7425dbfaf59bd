"""`pip install 'rllm[verl]'` is enough to compose a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .environments import Environment, same_process

pytestmark = same_process(("rllm[verl]",))


@pytest.fixture
def verl(with_line: Callable[[tuple[str, ...]], Environment]) -> Environment:
    return with_line(("rllm[verl]",))


def test_a_run_is_composed(verl: Environment, tmp_path: Path) -> None:
    done = verl.run(["rllm", "train", "sum", "rllm/backend=verl", "--profile", "cpu", "--dry-run"], tmp_path)

    assert done.returncode == 0, done.stderr
    assert "verl" in done.stdout


def test_the_doctor_finds_nothing_wrong(verl: Environment, tmp_path: Path) -> None:
    done = verl.run(["rllm", "plugins", "doctor"], tmp_path)

    assert done.returncode == 0, done.stdout
    assert "warning:" not in done.stdout, done.stdout
