"""Runs that are killed at any instant and resumed."""

from __future__ import annotations

import multiprocessing
import random
import time
from pathlib import Path
from typing import Any

import pytest
from scripted_world import ahead

from rllm_record.journal.records import CONFIG, StoredCall, decode_call, read_frames

SETTINGS = {
    "rllm.trainer.save_freq": 2,
    "rllm.trainer.total_batches": 8,
    "rllm.rollout.n": 2,
    "script.spread": 1.0,
}
RUN = Path("runs", "rllm-training", "one")
NIGHTLY = [pytest.param(number, marks=pytest.mark.nightly) for number in range(3, 30)]


def run_until_killed(run: Any, settings: dict[str, Any], seconds: float) -> None:
    """Begin a run in a new process, and kill it after `seconds`, which do not change the result of a test."""
    process = multiprocessing.get_context("fork").Process(target=run, args=(settings,))
    process.start()
    time.sleep(seconds)
    process.kill()
    process.join()


def read_call_seeds() -> set[int]:
    """Return the seeds of the calls in the journal."""
    bodies = [body for path in (RUN / "journal").glob("*.calls") for body in read_frames(path).records]
    calls = [decode_call(body) for body in bodies if not body.startswith(CONFIG)]
    return {call.seed for call in calls if isinstance(call, StoredCall)}


@pytest.mark.parametrize(
    "number",
    [pytest.param(0, marks=pytest.mark.smoke), *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2)), *NIGHTLY],
)
def test_killed_fixed_version_run_ends_with_same_weights(run: Any, whole: Any, number: int) -> None:
    settings = {**SETTINGS, **ahead(1 + number % 3)}
    expected = whole(settings)
    run_until_killed(run, settings, random.Random(number).uniform(0, expected.elapsed))
    assert run(settings, resume=True).digest == expected.digest


@pytest.mark.parametrize("number", [*(pytest.param(n, marks=pytest.mark.long) for n in (0, 1)), *NIGHTLY])
def test_killed_run_loses_and_repeats_nothing(run: Any, whole: Any, number: int) -> None:
    settings = {**SETTINGS, **ahead(1 + number % 3, partial=True)}
    expected = whole(settings)
    run_until_killed(run, settings, random.Random(-number).uniform(0, expected.elapsed))
    known = read_call_seeds()
    rest = run(settings, resume=True)
    assert rest.directory.samefile(RUN)
    assert not known & set(rest.backend.engine.answered)
    left = len(rest.steps)
    tasks = [[[episode.id for episode in step.generated] for step in made.steps] for made in (expected, rest)]
    assert tasks[1] == tasks[0][8 - left :]
    assert [step.task_batch for step in rest.steps] == list(range(8 - left, 8))
