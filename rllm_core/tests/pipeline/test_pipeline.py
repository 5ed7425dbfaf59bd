"""Running the stages of one step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from expecting import expect_error

from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import Episode, TerminationReason, Trajectory
from rllm_core.errors import CheckpointError, PipelineError
from rllm_core.pipeline.update_stages import entropy_coeff
from rllm_core.schema.algorithm_sections import EntropySection

MakeStep = Callable[..., TrainStep]


def _run(bench: Any, step: TrainStep) -> TrainStep:
    asyncio.run(bench.pipeline.run(step))
    return step


def test_complete_step_updates_once_and_logs(bench: Any, step: MakeStep, rollouts: Any) -> None:
    made = bench()
    made.runner.episodes = rollouts([1.0, 0.0, 0.0, 1.0])
    done = _run(made, step())
    assert [name for name, _ in made.backend.calls] == ["process", "update", "sync_weights"]
    assert made.backend.calls[-1] == ("sync_weights", done.weight_version) == ("sync_weights", 1)
    batch, plan = made.backend.calls[1][1]
    assert not batch.advantages[~batch.loss_mask].any()
    assert batch.advantages[batch.loss_mask] == pytest.approx([0.999998] * 2 + [-0.999998] * 4 + [0.999998] * 2)
    assert (plan.global_step, plan.aggregation, plan.losses["agent"].plugin.name) == (4, "token-mean", "ppo")
    ((global_step, metrics),) = made.logged
    expected = {
        "batch/rows": 4,
        "batch/tokens": 16,
        "actor/loss": 0.5,
        "train/epoch": 1,
        "train/weight_version": 1,
        "reward/agent/mean": 0.5,
        "advantage/agent/fraction_zero": 0,
    }
    assert (global_step, {name: metrics[name] for name in expected}) == (4, expected)


def test_step_time_is_the_sum_of_stages(bench: Any, step: MakeStep, rollouts: Any) -> None:
    made = bench()
    made.runner.episodes = rollouts([1.0, 0.0])
    done = _run(made, step())
    assert list(done.timing_dict) == made.stage_names
    assert all(seconds >= 0 for seconds in done.timing_dict.values())
    metrics = made.logged[0][1]
    timed = {name: seconds for name, seconds in done.timing_dict.items() if name != "log"}
    assert {name: metrics[f"time/{name}"] for name in timed} == timed
    assert metrics["time/step"] == pytest.approx(sum(timed.values()))
    assert metrics["time/tokens_per_second"] == pytest.approx(4 / sum(timed.values()))


def test_repeated_stages_are_timed_together(
    bench: Any, step: MakeStep, rollouts: Any, add_stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 1.0, 10.0, 14.0])
    monkeypatch.setattr("rllm_core.pipeline.pipeline.time.perf_counter", lambda: next(clock))
    add_stage("twice", lambda step: None)
    done = _run(bench({"rllm.pipeline.stages": ["twice", "twice"]}), step())
    assert done.timing_dict == {"twice": 5.0}


def test_only_always_stages_run_after_a_skip(bench: Any, step: MakeStep, add_stage: Any) -> None:
    ran: list[str] = []
    add_stage("skip", lambda step: step.skip("no_reason"))
    add_stage("sometimes", lambda step: ran.append("sometimes"))
    add_stage("always", lambda step: ran.append("always"), always=True)
    done = _run(bench({"rllm.pipeline.stages": ["always", "skip", "sometimes", "always"]}), step())
    assert (ran, "sometimes" in done.timing_dict) == (["always", "always"], False)
    assert (done.skip_reason, done.metrics) == ("no_reason", {"batch/skipped_no_reason": 1.0})


MASK_ERRORS = {"rllm.compact_filtering.enable": True}
REJECT = {"rllm.rejection_sample.enable": True}
SILENT = [Episode(id="t:0", trajectories=[Trajectory("agent", reward=1.0)])]
MISSING = [Episode(id="t:0", trajectories=[Trajectory("agent")])]


@pytest.mark.parametrize(
    ("reason", "settings", "episodes"),
    [
        ("nothing_generated", {}, []),
        ("nothing_generated", {}, [Episode(id="t:0", termination_reason=TerminationReason.ERROR)]),
        (
            "everything_masked",
            MASK_ERRORS,
            [Episode(id="t:0", trajectories=[Trajectory("a")], termination_reason=TerminationReason.ERROR)],
        ),
        ("no_rewards", {"rllm.algorithm.on_missing_reward": "drop"}, MISSING),
        ("all_groups_rejected", REJECT, SILENT),
        ("waiting_for_more_groups", REJECT | {"rllm.rejection_sample.mode": "episode"}, SILENT),
        ("no_sampled_tokens", {}, SILENT),
    ],
)
def test_an_early_end_is_a_metric(bench: Any, step: MakeStep, reason: str, settings: Any, episodes: Any) -> None:
    made = bench(settings)
    made.runner.episodes = episodes
    done = _run(made, step())
    assert done.skip_reason == reason
    assert [(global_step, metrics[f"batch/skipped_{reason}"]) for global_step, metrics in made.logged] == [(4, 1.0)]
    assert made.backend.calls == []
    assert done.weight_version == 0


def test_stage_state_survives_the_pipeline_and_json(bench: Any, step: MakeStep, rollouts: Any) -> None:
    settings = REJECT | {"rllm.rejection_sample.mode": "episode"}
    first, second = bench(settings), bench(settings)
    first.runner.episodes = rollouts([1.0, 1.0], task="solved")
    assert _run(first, step()).skip_reason == "waiting_for_more_groups"
    state = json.loads(json.dumps(first.pipeline.state_dict()))
    assert list(state) == ["rllm-core/reject"]
    assert state["rllm-core/reject"]["mode"] == "rllm-core/episode"
    assert len(state["rllm-core/reject"]["state"]["gathered"]) == 1
    second.pipeline.load_state_dict(state)
    second.runner.episodes = rollouts([1.0, 0.0], task="partly")
    done = _run(second, step())
    assert [group.group_id for group in done.trajectory_groups] == ["solved:agent", "partly:agent"]
    assert done.batch is not None
    assert done.batch.n_rows == 4


def test_state_of_a_removed_stage_is_an_error(bench: Any) -> None:
    state = bench().pipeline.state_dict()
    made = bench({"rllm.pipeline.remove": ["reject"]})
    assert made.pipeline.state_dict() == {}
    made.pipeline.load_state_dict({})
    with expect_error(CheckpointError, "run-changed", "rllm-core/reject", "rllm.pipeline"):
        made.pipeline.load_state_dict(state)


def test_moved_stages_resume_and_changed_sets_fail(bench: Any, add_stage: Any) -> None:
    add_stage("counter", Counter)
    usual = bench().pipeline
    more = bench({"rllm.pipeline.insert": [{"stage": "counter", "after": "log"}]}).pipeline
    moved = bench({"rllm.pipeline.insert": [{"stage": "counter", "before": "generate"}]}).pipeline
    for saved, resumed in ((usual, more), (more, usual)):
        before = resumed.state_dict()
        with expect_error(CheckpointError, "run-changed"):
            resumed.load_state_dict(saved.state_dict())
        assert resumed.state_dict() == before
    moved.load_state_dict(more.state_dict())


class Counter:
    """A stage that counts its steps."""

    def __init__(self, context: object, params: object) -> None:
        self.count = 0

    async def __call__(self, step: TrainStep) -> None:
        self.count += 1
        step.extras["count"] = self.count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def test_repeated_stage_keeps_both_states(bench: Any, step: MakeStep, add_stage: Any) -> None:
    add_stage("counter", Counter)
    add_stage("skip", lambda step: step.skip("no_reason"))
    settings = {"rllm.pipeline.stages": ["counter", "skip", "counter"]}
    first, second = bench(settings), bench(settings)
    _run(first, step())
    state = first.pipeline.state_dict()
    assert state == {"in-process/counter": {"count": 1}, "in-process/counter#2": {"count": 0}}
    second.pipeline.load_state_dict(state)
    assert second.pipeline.state_dict() == state


def _exit(step: TrainStep) -> None:
    raise SystemExit(0)


class Plain:
    """A stage that is no coroutine function."""

    def __init__(self, context: object, params: object) -> None:
        pass

    def __call__(self, step: TrainStep) -> None:
        pass


@pytest.mark.parametrize(
    ("body", "code", "values"),
    [
        (lambda step: 1 / 0, "plugin-failed", ["ZeroDivisionError: division by zero"]),
        (_exit, "plugin-failed", ["SystemExit: 0"]),
        (Plain, "stage-not-async", ["`async def __call__`"]),
    ],
)
def test_a_stage_that_fails_stops_the_step(
    bench: Any, step: MakeStep, add_stage: Any, body: Any, code: str, values: list[str]
) -> None:
    add_stage("mine", body)
    with expect_error(PipelineError, code, "in-process/mine", *values):
        _run(bench({"rllm.pipeline.stages": ["mine", "generate"]}), step())


def test_batch_is_read_only_if_it_exists(step: MakeStep) -> None:
    with pytest.raises(RuntimeError, match="batch"):
        _ = step().filled_batch


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"coeff": 0.1}, {0: 0.1, 1000: 0.1}),
        ({"coeff": 0.1, "final_coeff": 0.5}, {0: 0.1, 1000: 0.1}),
        ({"coeff": 0.4, "final_coeff": 0.0, "decay_steps": 4}, {0: 0.4, 1: 0.3, 3: 0.1, 4: 0.0, 9: 0.0}),
        ({"coeff": 0.0, "final_coeff": 1.0, "decay_steps": 2}, {0: 0.0, 1: 0.5, 2: 1.0, 3: 1.0}),
    ],
)
def test_the_entropy_bonus_falls_linearly(schedule: dict[str, Any], expected: dict[int, float]) -> None:
    assert {step: entropy_coeff(EntropySection(**schedule), step) for step in expected} == pytest.approx(expected)
