"""Resumed runs that were cut off keep finished calls. Fixed-version runs end as if undisturbed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from expecting import check_values, expect_error
from scripted_world import ahead

from rllm_core.contracts.observer import Observer, ObserverPlugin
from rllm_core.errors import CheckpointError, RllmError
from rllm_record.journal.records import JournalError

SAVING = {
    "rllm.trainer.save_freq": 2,
    "rllm.trainer.total_batches": 8,
    "rllm.rollout.n": 2,
    "script.spread": 1.0,
}
FIXED, LATEST = {**SAVING, **ahead(2)}, {**SAVING, **ahead(2, partial=True)}
DYNAMIC = {"rllm.rejection_sample.enable": True, "rllm.rejection_sample.mode": "dynamic"}
WITHOUT = {"rllm.trainer.observers": [{"name": "journal", "keep": "off"}]}
NOTING = {**SAVING, "rllm.trainer.observers": [{"name": "journal", "keep": "run"}]}
CUTS = (0.05, 0.45, 0.97)
"""Shares of an undisturbed run's seconds."""


def list_task_ids(made: Any) -> list[set[str]]:
    return [{episode.task_id for episode in step.generated} for step in made.steps]


def files(made: Any) -> list[Path]:
    return sorted((made.directory / "journal").iterdir())


@pytest.mark.parametrize(
    ("settings", "cuts"),
    [
        pytest.param(ahead(1), CUTS[1:2], marks=pytest.mark.smoke, id="S1"),
        pytest.param(ahead(2), CUTS[2:], marks=pytest.mark.long, id="S2"),
        pytest.param({**ahead(3), **DYNAMIC}, CUTS[:1], marks=pytest.mark.long, id="S3 dynamic"),
        pytest.param(ahead(3), (0.5, 0.2), marks=pytest.mark.long, id="S3 twice"),
    ],
)
def test_interrupted_fixed_version_run_ends_with_equal_weights(
    run: Any, whole: Any, settings: Any, cuts: tuple[float, ...]
) -> None:
    settings = {**SAVING, **settings}
    expected = whole(settings)
    for number, cut in enumerate(cuts):
        run(settings, resume=number > 0, cut_after=cut * expected.seconds)
    assert run(settings, resume=True).digest == expected.digest


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(FIXED, marks=pytest.mark.long, id="fixed"),
        pytest.param(LATEST, marks=pytest.mark.smoke, id="latest"),
    ],
)
def test_no_finished_call_is_sampled_again(run: Any, whole: Any, settings: Any) -> None:
    expected = whole(settings)
    sampled = list[int]()
    for share in (0.3, 0.6):
        part = run(settings, resume=bool(sampled), cut_after=share * expected.seconds)
        sampled += part.backend.engine.answered
    sampled += run(settings, resume=True).backend.engine.answered
    assert sorted(sampled) == sorted(expected.backend.engine.answered)


@pytest.mark.long
@pytest.mark.parametrize("cut", CUTS)
def test_latest_weights_lose_and_repeat_no_task(run: Any, whole: Any, cut: float) -> None:
    expected = whole(LATEST)
    first, rest = run(LATEST, cut_after=cut * expected.seconds), run(LATEST, resume=True)
    kept = first.steps[: 8 - len(rest.steps)]
    assert list_task_ids(first)[: len(kept)] + list_task_ids(rest) == list_task_ids(expected)
    assert [step.task_batch for step in rest.steps] == list(range(len(kept), 8))
    assert all(step.metrics["staleness/max"] <= 2 for step in rest.steps)


@pytest.mark.long
def test_stopped_fixed_version_run_samples_only_the_rest(run: Any, whole: Any) -> None:
    first, rest = run(ahead(3), stop_after=3), run(ahead(3), resume=True)
    assert (len(first.steps), len(rest.steps)) == (3, 3)
    expected = whole(ahead(3))
    assert rest.digest == expected.digest
    assert first.backend.engine.sampled + rest.backend.engine.sampled == expected.backend.engine.sampled


def test_resumed_run_continues_after_the_used_batches(run: Any) -> None:
    settings = {**ahead(3), **DYNAMIC}
    first, rest = run(settings, stop_after=2), run(settings, resume=True)
    assert rest.steps[0].task_batch >= sum(step.rollout_batches for step in first.steps)
    assert [step.weight_version for step in rest.steps] == [3, 4, 5, 6]
    assert all(step.metrics["staleness/max"] <= 3 for step in rest.steps)


@pytest.mark.parametrize(("before", "now"), [(2, 0), (0, 2)])
def test_another_bound_is_refused(run: Any, before: int, now: int) -> None:
    run(ahead(before) if before else {}, stop_after=2)
    with expect_error(CheckpointError, "run-changed", f"a staleness of {before}", now):
        run(ahead(now) if now else {}, resume=True)


@pytest.mark.long
def test_synchronous_run_has_a_journal_if_configured(run: Any, whole: Any) -> None:
    settings = {**SAVING, "rllm.trainer.observers": ["journal"]}
    expected = whole(settings)
    first = run(settings, cut_after=0.6 * expected.seconds)
    sampled = set(first.backend.engine.answered)
    rest = run(settings, resume=True)
    assert rest.digest == expected.digest
    assert not sampled & set(rest.backend.engine.answered)
    assert not (run(SAVING, "other").directory / "journal").exists()


def test_calls_of_a_validation_are_not_kept(run: Any) -> None:
    settings = {**ahead(2), "rllm.trainer.test_freq": 2, "data.max_response_length": 4}
    made = run({**settings, "rllm.trainer.observers": ["journal"]})
    assert made.backend.engine.validated
    assert files(made) == []


def test_batches_that_no_checkpoint_needs_are_dropped(run: Any) -> None:
    made = run({**FIXED, "rllm.trainer.keep_checkpoints": 2}, stop_after=6)
    assert [path.stem for path in files(made)] == ["000004", "000005", "000006", "000007"]


def cut_last_record(made: Any) -> str:
    """Shorten the last file of the journal, and return its name."""
    path = files(made)[-1]
    path.write_bytes(path.read_bytes()[:-1])
    return path.name


def test_journal_with_fewer_records_than_checkpoint_is_refused(run: Any) -> None:
    name = cut_last_record(run(FIXED, stop_after=3))
    with expect_error(CheckpointError, "run-changed", "rllm.async_training.partial_rollout=false"):
        run(LATEST, resume=True)
    with expect_error(JournalError, "damaged-journal", f"{name} has 8", "9"):
        run(FIXED, resume=True)


def test_batches_are_generated_again_without_journal(run: Any) -> None:
    run(FIXED, stop_after=3)
    rest = run({**FIXED, **WITHOUT}, resume=True)
    (warning,) = rest.warnings
    check_values(warning, "newer weights", "2 unfinished")
    assert [step.task_batch for step in rest.steps] == [3, 4, 5, 6, 7]


@pytest.mark.long
def test_records_after_last_checkpoint_are_read_until_damage(run: Any, whole: Any) -> None:
    settings = {**SAVING, **ahead(1)}
    cut_last_record(run(settings, cut_after=0.6 * whole(settings).seconds))
    assert run(settings, resume=True).digest == whole(settings).digest


@pytest.mark.long
def test_calls_of_a_different_configuration_are_sampled_again(run: Any) -> None:
    other = {**FIXED, "rllm.algorithm.norm_adv_by_std_in_grpo": False}
    until_saved = run(FIXED, "stopped", stop_after=2)
    run(FIXED, "cut", cut_after=until_saved.seconds + 2.0)
    expected, made = run(other, "stopped", resume=True), run(other, "cut", resume=True)
    assert (made.digest, len(made.steps)) == (expected.digest, 6)


@pytest.mark.parametrize("joins", [True, False])
def test_unlisted_observer_may_join_a_run(world: Any, planned: Any, joins: bool) -> None:
    world.add(
        ObserverPlugin(
            name="joiner", summary="For tests.", load=lambda: lambda params: Observer(), joins=lambda config: joins
        )
    )
    names = [entry.plugin.name for entry in planned({}).observers]
    assert names.count("joiner") == joins
    chosen = planned({"rllm.trainer.observers": ["joiner"]}).observers
    assert [entry.plugin.name for entry in chosen].count("joiner") == 1


def test_resumed_run_repairs_notes_of_checkpoints(run: Any) -> None:
    made = run(NOTING, stop_after=4)
    noted = made.directory / "journal" / "checkpoints.jsonl"

    def steps() -> list[int]:
        return [json.loads(line)["step"] for line in noted.read_text().splitlines()]

    lines = noted.read_text().splitlines()
    noted.write_text(f"{lines[0]}\n{lines[1][:20]}")
    run(NOTING, resume=True, stop_after=3)
    assert steps() == [2, 4, 6, 7]
    assert noted.read_text().splitlines()[:2] == lines
    for step in (6, 7):
        shutil.rmtree(made.directory / "checkpoints" / f"step_{step:06}")
    run(NOTING, resume=True, stop_after=1)
    assert steps() == [2, 4, 5]
    noted.write_text("{}\n")
    with expect_error(RllmError, "damaged-file", "checkpoints.jsonl"):
        run(NOTING, resume=True)


@pytest.mark.long
def test_rollouts_with_timeout_end_with_timeout_again(run: Any, whole: Any) -> None:
    settings = {**FIXED, "rllm.agent.trajectory_timeout": 2.0}
    run(settings, stop_after=3)
    rest = run(settings, resume=True)
    reasons = [
        [(episode.id, episode.termination_reason.value) for step in steps for episode in step.generated]
        for steps in (whole(settings).steps[3:5], rest.steps[:2])
    ]
    assert reasons[0] == reasons[1]
    assert "timeout" in {reason for _, reason in reasons[0]}
