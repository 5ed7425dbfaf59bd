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
    "rllm.record": "off",
    "script.spread": 1.0,
}
DYNAMIC = {"rllm.rejection_sample.enable": True, "rllm.rejection_sample.mode": "dynamic"}
WITHOUT = {"rllm.trainer.observers": [{"name": "journal", "keep": "off"}]}
CUTS = [0.45, *(pytest.param(share, marks=pytest.mark.long) for share in (0.05, 0.3, 0.8, 0.97))]
"""Shares of an undisturbed run's seconds."""


def list_task_ids(made: Any) -> list[set[str]]:
    return [{episode.task_id for episode in step.generated} for step in made.steps]


def files(made: Any) -> list[Path]:
    return sorted((made.directory / "journal").iterdir())


@pytest.mark.long
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("settings", [ahead(1), {**ahead(3), **DYNAMIC}], ids=["S1", "S3 dynamic"])
def test_fixed_version_run_cut_off_ends_with_same_weights(run: Any, settings: Any, cut: float) -> None:
    whole = run({**SAVING, **settings}, "whole")
    run({**SAVING, **settings}, cut_after=cut * whole.seconds)
    assert run({**SAVING, **settings}, resume=True).digest == whole.digest


@pytest.mark.long
@pytest.mark.parametrize("partial", [False, True], ids=["fixed", "latest"])
def test_no_finished_call_is_sampled_again(run: Any, partial: bool) -> None:
    whole = run({**SAVING, **ahead(2, partial)}, "whole")
    sampled = list[int]()
    for share in (0.3, 0.6):
        part = run({**SAVING, **ahead(2, partial)}, resume=bool(sampled), cut_after=share * whole.seconds)
        sampled += part.backend.engine.answered
    sampled += run({**SAVING, **ahead(2, partial)}, resume=True).backend.engine.answered
    assert sorted(sampled) == sorted(whole.backend.engine.answered)


@pytest.mark.long
def test_run_cut_off_twice_ends_with_same_weights(run: Any) -> None:
    settings = {**SAVING, **ahead(3)}
    whole = run(settings, "whole")
    run(settings, cut_after=0.5 * whole.seconds)
    run(settings, resume=True, cut_after=0.2 * whole.seconds)
    assert run(settings, resume=True).digest == whole.digest


@pytest.mark.long
@pytest.mark.parametrize("cut", CUTS)
def test_latest_weights_lose_and_repeat_no_task(run: Any, cut: float) -> None:
    settings = {**SAVING, **ahead(2, partial=True)}
    whole = run(settings, "whole")
    first, rest = run(settings, cut_after=cut * whole.seconds), run(settings, resume=True)
    kept = first.steps[: 8 - len(rest.steps)]
    assert list_task_ids(first)[: len(kept)] + list_task_ids(rest) == list_task_ids(whole)
    assert all(step.metrics["staleness/max"] <= 2 for step in rest.steps)


@pytest.mark.long
def test_stopped_fixed_version_run_samples_only_the_rest(run: Any) -> None:
    whole = run(ahead(3), "whole")
    tokens = whole.backend.engine.sampled
    first = run(ahead(3), stop_after=3).backend.engine.sampled
    rest = run(ahead(3), resume=True)
    assert rest.digest == whole.digest
    assert first + rest.backend.engine.sampled == tokens


@pytest.mark.long
def test_synchronous_run_has_a_journal_if_configured(run: Any) -> None:
    settings = {**SAVING, "rllm.trainer.observers": ["journal"]}
    whole = run(settings, "whole")
    first = run(settings, cut_after=0.6 * whole.seconds)
    sampled = set(first.backend.engine.answered)
    rest = run(settings, resume=True)
    assert rest.digest == whole.digest
    assert not sampled & set(rest.backend.engine.answered)
    assert not (run(SAVING, "other").directory / "journal").exists()


def test_calls_of_a_validation_are_not_kept(run: Any) -> None:
    settings = {**ahead(2), "rllm.trainer.test_freq": 2, "data.max_response_length": 4}
    made = run({**settings, "rllm.trainer.observers": ["journal"]})
    assert made.backend.engine.validated
    assert files(made) == []


def test_batches_that_no_checkpoint_needs_are_dropped(run: Any) -> None:
    made = run({**SAVING, **ahead(2), "rllm.trainer.keep_checkpoints": 2}, stop_after=6)
    assert [path.stem for path in files(made)] == ["000004", "000005", "000006", "000007"]


def test_batches_are_generated_again_without_journal(run: Any) -> None:
    run({**SAVING, **ahead(2)}, stop_after=3)
    rest = run({**SAVING, **ahead(2), **WITHOUT}, resume=True)
    (warning,) = rest.warnings
    check_values(warning, "newer weights", "2 unfinished")
    assert [step.task_batch for step in rest.steps] == [3, 4, 5, 6, 7]


def test_a_flipped_bit_is_refused_by_record(run: Any) -> None:
    made = run({**SAVING, **ahead(2)}, stop_after=3)
    path = files(made)[-1]
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)
    with expect_error(JournalError, "damaged-journal", "Record 8", path.name):
        run({**SAVING, **ahead(2)}, resume=True)


def test_journal_with_fewer_records_than_checkpoint_is_refused(run: Any) -> None:
    made = run({**SAVING, **ahead(2)}, stop_after=3)
    path = files(made)[-1]
    path.write_bytes(path.read_bytes()[:-1])
    with expect_error(JournalError, "damaged-journal", f"{path.name} has 8", "9"):
        run({**SAVING, **ahead(2)}, resume=True)


def test_a_journal_that_is_gone_is_refused(run: Any) -> None:
    made = run({**SAVING, **ahead(2)}, stop_after=3)
    for path in files(made):
        path.unlink()
    with expect_error(JournalError, "damaged-journal", "has 0"):
        run({**SAVING, **ahead(2)}, resume=True)


@pytest.mark.long
def test_records_after_last_checkpoint_are_read_until_damage(run: Any) -> None:
    settings = {**SAVING, **ahead(1)}
    whole = run(settings, "whole")
    made = run(settings, cut_after=0.6 * whole.seconds)
    path = files(made)[-1]
    path.write_bytes(path.read_bytes()[:-1])
    assert run(settings, resume=True).digest == whole.digest


def test_changed_choice_of_weights_is_refused(run: Any) -> None:
    run({**SAVING, **ahead(2)}, stop_after=3)
    with expect_error(CheckpointError, "run-changed", "rllm.async_training.partial_rollout=false"):
        run({**SAVING, **ahead(2, partial=True)}, resume=True)


@pytest.mark.long
def test_calls_of_a_different_configuration_are_sampled_again(run: Any) -> None:
    settings, other = {**SAVING, **ahead(2)}, {"rllm.algorithm.norm_adv_by_std_in_grpo": False}
    until_saved = run(settings, "stopped", stop_after=2)
    run(settings, "cut", cut_after=until_saved.seconds + 2.0)
    expected = run({**settings, **other}, "stopped", resume=True)
    made = run({**settings, **other}, "cut", resume=True)
    assert (made.digest, len(made.steps)) == (expected.digest, 6)


@pytest.mark.parametrize("joins", [True, False])
def test_observer_may_join_runs_that_do_not_list_it(world: Any, planned: Any, joins: bool) -> None:
    world.add(
        ObserverPlugin(
            name="joiner", summary="For tests.", load=lambda: lambda params: Observer(), joins=lambda config: joins
        )
    )
    names = [entry.plugin.name for entry in planned({}).observers]
    assert names == (["joiner"] if joins else [])
    assert [entry.plugin.name for entry in planned({"rllm.trainer.observers": ["joiner"]}).observers] == ["joiner"]


def test_resumed_run_adds_missing_note_of_checkpoint(run: Any) -> None:
    settings = {**SAVING, "rllm.trainer.observers": [{"name": "journal", "keep": "run"}]}
    noted = run(settings, stop_after=4).directory / "journal" / "checkpoints.jsonl"
    lines = noted.read_text().splitlines()
    noted.write_text(f"{lines[0]}\n{lines[1][:20]}")
    run(settings, resume=True, stop_after=3)
    assert [json.loads(line)["step"] for line in noted.read_text().splitlines()] == [2, 4, 6, 7]
    assert noted.read_text().splitlines()[:2] == lines


def test_notes_of_repeated_steps_are_removed(run: Any) -> None:
    settings = {**SAVING, "rllm.trainer.observers": [{"name": "journal", "keep": "run"}]}
    made = run(settings, stop_after=4)
    shutil.rmtree(made.directory / "checkpoints" / "step_000004")
    run(settings, resume=True, stop_after=1)
    lines = (made.directory / "journal" / "checkpoints.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 3]


def test_changed_note_is_refused(run: Any) -> None:
    settings = {**SAVING, "rllm.trainer.observers": [{"name": "journal", "keep": "run"}]}
    made = run(settings, stop_after=2)
    (made.directory / "journal" / "checkpoints.jsonl").write_text("{}\n")
    with expect_error(RllmError, "damaged-file", "checkpoints.jsonl"):
        run(settings, resume=True)


@pytest.mark.long
def test_rollouts_with_timeout_end_with_timeout_again(run: Any) -> None:
    settings = {**SAVING, **ahead(2), "rllm.agent.trajectory_timeout": 2.0}
    whole = run(settings, "whole")
    run(settings, stop_after=3)
    rest = run(settings, resume=True)
    reasons = [
        [(episode.id, episode.termination_reason.value) for step in steps for episode in step.generated]
        for steps in (whole.steps[3:5], rest.steps[:2])
    ]
    assert reasons[0] == reasons[1]
    assert "timeout" in {reason for _, reason in reasons[0]}
