"""Age of weights, order of batches, and that no rollout is lost or wasted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from scripted_world import ahead

DYNAMIC = {"rllm.rejection_sample.enable": True, "rllm.rejection_sample.mode": "dynamic"}
EPISODE = {
    "rllm.rejection_sample.enable": True,
    "rllm.rejection_sample.mode": "episode",
    "rllm.rejection_sample.min_partial_solve_tasks": 5,
}
LONG = {"rllm.trainer.total_batches": 12, "script.straggler": 100.0}


@pytest.mark.parametrize(
    ("staleness", "rejection", "partial"),
    [
        (4, {}, False),
        (1, DYNAMIC, True),
        (8, EPISODE, True),
        pytest.param(4, DYNAMIC, False, marks=pytest.mark.long),
        pytest.param(1, EPISODE, False, marks=pytest.mark.long),
        pytest.param(8, {}, True, marks=pytest.mark.long),
    ],
)
def test_no_token_is_staler_than_the_bound(run: Any, staleness: int, rejection: dict[str, Any], partial: bool) -> None:
    made = run({**ahead(staleness, partial), **rejection, **LONG})
    seen = [version - versions.min() for version, versions in enumerate(made.backend.updates)]
    assert max(seen) <= staleness
    assert [step.metrics.get("staleness/max", 0) for step in made.steps if step.batch is not None] == seen


def test_fixed_version_batch_has_one_version(run: Any) -> None:
    made = run({**ahead(3), **LONG})
    for batch, versions in enumerate(made.backend.updates):
        assert set(versions.tolist()) == {max(0, batch - 3)}


def test_latest_weights_continue_running_batches(run: Any) -> None:
    made = run({**ahead(3, partial=True), **LONG})
    assert any(len(set(versions.tolist())) > 1 for versions in made.backend.updates)
    assert any(
        step.version_spans
        for done in made.steps
        for episode in done.generated
        for trajectory in episode.trajectories
        for step in trajectory.steps
    )


@pytest.mark.parametrize(
    "partial",
    [
        pytest.param(False, marks=pytest.mark.long, id="fixed"),
        pytest.param(True, marks=pytest.mark.smoke, id="latest"),
    ],
)
def test_steps_keep_their_tasks_and_train_all_tokens(run: Any, partial: bool) -> None:
    plain, made = run(LONG, "plain"), run({**ahead(4, partial), **LONG}, "ahead")
    tasks = [[[episode.id for episode in step.generated] for step in each.steps] for each in (plain, made)]
    assert tasks[0] == tasks[1]
    validated = [each.backend.engine.sampled - sum(map(len, each.backend.updates)) for each in (plain, made)]
    assert validated[0] == validated[1]
    assert len(made.backend.updates) == 12


@pytest.mark.long
@pytest.mark.parametrize("rejection", [DYNAMIC, EPISODE], ids=["dynamic", "episode"])
def test_fixed_version_run_does_not_depend_on_timing(run: Any, rejection: dict[str, Any]) -> None:
    settings = {**ahead(2), **rejection, **LONG}
    digests = {run({**settings, "script.timing": timing}, f"t{timing}").digest for timing in range(2)}
    assert len(digests) == 1


@pytest.mark.long
def test_batches_generated_during_updates_save_time(run: Any) -> None:
    settings = {"script.update_seconds": 10.0, "rllm.trainer.total_batches": 12}
    made = [run({**(ahead(s) if s else {}), **settings}, f"s{s}") for s in (0, 1, 4)]
    assert made[0].seconds / made[1].seconds > 1.3
    assert made[2].seconds <= made[1].seconds
    assert all(0 <= step.generated_ahead <= sum(step.timing_dict.values()) for step in made[2].steps)


@pytest.mark.parametrize("staleness", [0, 4])
def test_observers_receive_steps_and_epochs_in_order(run: Any, staleness: int) -> None:
    made = run({**(ahead(staleness) if staleness else {})})
    # 12 tasks, 4 at a time: an epoch is 3 steps.
    expected: list[tuple[str, int]] = []
    for epoch in range(2):
        expected.append(("epoch start", epoch))
        for step in range(3 * epoch, 3 * epoch + 3):
            expected += [("start", step), ("end", step)]
        expected.append(("epoch end", epoch))
    assert made.events == expected
    assert [step.weight_version for step in made.steps] == [1, 2, 3, 4, 5, 6]


def test_validation_uses_one_version(run: Any) -> None:
    made = run({**ahead(3, partial=True), "rllm.trainer.test_freq": 2, "script.update_seconds": 0.5})
    tokens = Counter(made.backend.engine.validated)
    assert set(tokens) == {2, 4, 6}
    assert len(set(tokens.values())) == 1
