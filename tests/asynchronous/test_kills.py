"""Runs that are killed at any instant and resumed."""

from __future__ import annotations

import multiprocessing
import random
import time
from pathlib import Path
from typing import Any

import pytest
from scripted_world import ahead

from rllm_record.journal.records import CONFIG, KeptCall, decoded, read_frames

SETTINGS = {
    "rllm.trainer.save_freq": 2,
    "rllm.trainer.total_batches": 8,
    "rllm.rollout.n": 2,
    "rllm.record": "off",
    "script.spread": 1.0,
}
KILLS = [
    0,
    *(pytest.param(number, marks=pytest.mark.long) for number in range(1, 4)),
    *(pytest.param(number, marks=pytest.mark.nightly) for number in range(4, 30)),
]


@pytest.fixture
def killed_run(run: Any) -> Any:
    """Begin a run in a new process, and kill it at a random instant within the seconds of `whole`."""

    def make(settings: dict[str, Any], seconds: float) -> None:
        process = multiprocessing.get_context("fork").Process(target=run, args=(settings,))
        process.start()
        time.sleep(seconds)
        process.kill()
        process.join()

    return make


def timed(run: Any, settings: dict[str, Any]) -> tuple[Any, float]:
    """Return an undisturbed run and its seconds. The seconds do not change the result of a test."""
    begun = time.monotonic()
    return run(settings, "whole"), time.monotonic() - begun


def read_call_seeds(directory: Path) -> set[int]:
    """Return the seeds of the calls in the journal."""
    bodies = [body for path in (directory / "journal").glob("*.calls") for body in read_frames(path).records]
    calls = [decoded(body) for body in bodies if not body.startswith(CONFIG)]
    return {call.seed for call in calls if isinstance(call, KeptCall)}


@pytest.mark.long
@pytest.mark.parametrize("number", KILLS)
def test_killed_fixed_version_run_ends_with_same_weights(run: Any, killed_run: Any, number: int) -> None:
    settings = {**SETTINGS, **ahead(1 + number % 3)}
    whole, seconds = timed(run, settings)
    killed_run(settings, random.Random(number).uniform(0, seconds))
    assert run(settings, resume=True).digest == whole.digest


@pytest.mark.long
@pytest.mark.parametrize("number", KILLS)
def test_killed_run_loses_and_repeats_nothing(run: Any, killed_run: Any, number: int) -> None:
    settings = {**SETTINGS, **ahead(1 + number % 3, partial=True)}
    whole, seconds = timed(run, settings)
    killed_run(settings, random.Random(-number).uniform(0, seconds))
    known = read_call_seeds(whole.directory.with_name("one"))
    rest = run(settings, resume=True)
    assert not known & set(rest.backend.engine.answered)
    left = len(rest.steps)
    tasks = [[[episode.id for episode in step.generated] for step in made.steps] for made in (whole, rest)]
    assert tasks[1] == tasks[0][8 - left :]
    assert [step.task_batch for step in rest.steps] == list(range(8 - left, 8))
