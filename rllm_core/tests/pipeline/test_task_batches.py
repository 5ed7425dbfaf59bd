"""Several rollout batches in one step, when rejection requests more."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from expecting import expect_error

from rllm_core.contracts import RejectionResult, RolloutRequest, TrainStep
from rllm_core.data.types import Episode, Task, TrajectoryGroup
from rllm_core.errors import ConfigError, PipelineError
from rllm_core.pipeline.pipeline import NextBatch, Pipeline

MakeStep = Callable[..., TrainStep]
DYNAMIC = {
    "rllm.rejection_sample.enable": True,
    "rllm.rejection_sample.mode": "dynamic",
    "data.train_batch_size": 2,
}


class ByTask:
    """A runner stub. The name of each task sets the rewards of its rollouts."""

    def __init__(self, rollouts: Any) -> None:
        self._rollouts = rollouts
        self.orders: list[RolloutRequest] = []

    async def run(self, order: RolloutRequest) -> list[Episode]:
        self.orders.append(order)
        rewards = {"partly": [1.0, 0.0], "solved": [1.0, 1.0], "failed": [0.0, 0.0], "empty": []}
        return [
            episode for task in order.tasks for episode in self._rollouts(rewards[task.id.split("-")[0]], task=task.id)
        ]


def _further_batches(pipeline: Pipeline, step: MakeStep, given: Iterator[list[Task]]) -> NextBatch:
    """Return a function that generates further rollout batches of these tasks."""
    numbers = itertools.count(5)

    async def next_batch() -> TrainStep:
        generated = step(tasks=next(given), task_batch=next(numbers))
        await pipeline.generate(generated)
        return generated

    return next_batch


@pytest.fixture
def run(bench: Any, step: MakeStep, rollouts: Any) -> Callable[..., tuple[Any, ByTask, TrainStep]]:
    """Return a function that runs a pipeline on batches of tasks, given by their names."""

    def make(batches: list[list[str]], settings: dict[str, Any] = DYNAMIC) -> tuple[Any, ByTask, TrainStep]:
        made = bench(settings)
        runner = ByTask(rollouts)
        given = iter([[Task(id=name) for name in names] for names in batches])
        pipeline = Pipeline(made.plan.stages, dataclasses.replace(made.context, runner=runner))
        training = step(tasks=next(given), task_batch=4)
        asyncio.run(pipeline.run(training, _further_batches(pipeline, step, given)))
        return made, runner, training

    return make


def test_rollouts_continue_until_the_batch_is_full(run: Any) -> None:
    made, runner, done = run([["partly-a", "solved-b"], ["failed-c", "solved-d"], ["partly-e", "partly-f"]])
    assert [group.group_id for group in done.trajectory_groups] == ["partly-a:agent", "partly-e:agent"]
    assert [call for call, _ in made.backend.calls] == ["process", "update", "sync_weights"]
    assert done.batch is not None
    assert done.batch.n_rows == 4
    assert len({order.sampling.seed for order in runner.orders}) == 3
    assert (done.rollout_batches, len(done.generated)) == (3, 12)
    assert not any(name.startswith("batch/skipped") for name in done.metrics)
    expected = {
        "batch/rollout_batches": 3.0,
        "batch/episodes": 12.0,
        "batch/groups_before_filter": 6.0,
        "batch/groups_after_filter": 2.0,
        "batch/groups_dropped_all_solved": 2.0,
        "batch/groups_dropped_all_failed": 1.0,
        "batch/groups_waiting": 1.0,
        "batch/solved": 7 / 12,
        "reward/agent/mean": 7 / 12,
    }
    assert {name: done.metrics[name] for name in expected} == pytest.approx(expected)


def test_counts_are_summed_and_other_metrics_replaced() -> None:
    first, second = (TrainStep(global_step=3, epoch=0, total_steps=9, tasks=[], task_batch=n) for n in (4, 5))
    for generated, number in ((first, 1.0), (second, 2.0)):
        generated.count("counted", number)
        generated.metrics["latest"] = number
        generated.extras["mine"] = number
        generated.timing_dict["generate"] = number
        generated.generated_ahead = number
    first.generate_more()
    second.skip("nothing_generated")
    first.take_rollout_batch(second)
    assert first.metrics == {"counted": 3.0, "latest": 2.0, "batch/skipped_nothing_generated": 1.0}
    assert (first.extras, first.timing_dict, first.generated_ahead) == ({"mine": 2.0}, {"generate": 3.0}, 3.0)
    assert (first.task_batch, first.rollout_batches, first.asks_for_more) == (5, 2, False)
    assert first.skip_reason == "nothing_generated"


def test_empty_batch_does_not_end_the_step(run: Any) -> None:
    _, _, done = run([["empty-a", "empty-b"], ["partly-c", "partly-d"]])
    assert [group.group_id for group in done.trajectory_groups] == ["partly-c:agent", "partly-d:agent"]
    assert done.skip_reason == ""
    assert not any(name.startswith("batch/skipped") for name in done.metrics)


def test_number_of_batches_is_bounded(run: Any) -> None:
    settings = DYNAMIC | {"rllm.rejection_sample.max_gen_batches": 2}
    made, runner, done = run([["solved-a", "solved-b"], ["failed-c", "failed-d"], ["partly-e"]], settings)
    assert len(runner.orders) == 2
    assert done.skip_reason == "all_groups_rejected"
    assert made.backend.calls == []
    assert made.logged[0][1]["batch/skipped_all_groups_rejected"] == 1.0


def test_waiting_groups_are_trained_on_without_new_ones(bench: Any, step: MakeStep, rollouts: Any) -> None:
    made = bench(DYNAMIC)
    runner = ByTask(rollouts)
    pipeline = Pipeline(made.plan.stages, dataclasses.replace(made.context, runner=runner))
    asyncio.run(pipeline.run(step(tasks=[Task(id=f"partly-{name}") for name in "abcd"])))
    silent = step(tasks=[Task(id="empty-e")])
    asyncio.run(pipeline.run(silent))
    assert [group.group_id for group in silent.trajectory_groups] == ["partly-c:agent", "partly-d:agent"]
    assert "batch/skipped_nothing_generated" not in silent.metrics
    assert silent.metrics["batch/groups_waiting"] == 0.0


@pytest.fixture
def rejecting(bench: Any, step: MakeStep, offer: Any) -> Callable[[Any], TrainStep]:
    """A step of two groups after a rejection mode made of this function of the groups."""

    class Mode:
        def __init__(self, body: Any) -> None:
            self._body = body

        def __call__(self, groups: list[TrajectoryGroup]) -> Any:
            return self._body(groups)

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    def run(body: Any) -> TrainStep:
        offer("rejection", "mine", lambda _: Mode(body))
        stage = bench({"rllm.rejection_sample.enable": True, "rllm.rejection_sample.mode": "mine"}).stage("reject")
        training = step(trajectory_groups=[TrajectoryGroup(group_id=f"{name}:agent", trajectories=[]) for name in "ab"])
        asyncio.run(stage(training))
        return training

    return run


STRANGER = TrajectoryGroup(group_id="c:agent", trajectories=[])
BAD = "bad-rejection-result"


@pytest.mark.parametrize(
    ("body", "code", "problem"),
    [
        (lambda groups: RejectionResult(train=groups[:1]), BAD, "leaves out group 'b:agent'"),
        (
            lambda groups: RejectionResult(train=[groups[0]] * 2),
            BAD,
            "names group 'a:agent' twice: to train on and to train on",
        ),
        (
            lambda groups: RejectionResult(train=groups[:1], waiting=groups, dropped={"odd": groups[1:]}),
            BAD,
            "names group 'a:agent' twice: to train on and as waiting",
        ),
        (
            lambda groups: RejectionResult(train=groups[:1], dropped={"odd": [STRANGER]}),
            BAD,
            "names group 'c:agent' as dropped for 'odd', which was neither offered nor waiting",
        ),
        (
            lambda groups: RejectionResult(train=[dataclasses.replace(group) for group in groups]),
            BAD,
            "names group 'a:agent' to train on, which was neither offered nor waiting",
        ),
        (lambda groups: RejectionResult(train=groups, more=True), BAD, "2"),
        (lambda groups: groups, BAD, "returned [TrajectoryGroup("),
        (lambda groups: groups[7], "plugin-failed", "IndexError"),
        (lambda groups: RejectionResult(train=groups[:1], dropped={"odd": 1}), "plugin-failed", "TypeError"),
    ],
)
def test_mode_that_misplaces_a_group_is_an_error(rejecting: Any, body: Any, code: str, problem: str) -> None:
    with expect_error(PipelineError, code, "'in-process/mine'", problem):
        rejecting(body)


def test_a_mode_that_never_stops_asking_is_stopped(bench: Any, step: MakeStep, rollouts: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("rllm_core.pipeline.transform_stages.MOST_BATCHES", 20)
    made = bench(DYNAMIC | {"rllm.rejection_sample.max_gen_batches": 10**6})
    runner = ByTask(rollouts)
    pipeline = Pipeline(made.plan.stages, dataclasses.replace(made.context, runner=runner))
    batches = _further_batches(pipeline, step, itertools.repeat([Task(id="solved-z")]))
    with expect_error(PipelineError, "bad-rejection-result", "20"):
        asyncio.run(pipeline.run(step(tasks=[Task(id="solved-a")]), batches))


def test_step_with_all_batches_cannot_request_more(bench: Any, step: MakeStep, rollouts: Any) -> None:
    made = bench(DYNAMIC)
    made.runner.episodes = rollouts([1.0, 1.0])
    with expect_error(PipelineError, "no-training-tasks"):
        asyncio.run(made.pipeline.run(step()))


def test_groups_of_skipped_steps_are_not_trained_on(bench: Any, step: MakeStep, rollouts: Any, add_stage: Any) -> None:
    add_stage("refuse", lambda step: step.skip("not_today"), reads="trajectory_groups", writes="trajectory_groups")
    made = bench({"rllm.pipeline.insert": [{"stage": "refuse", "before": "reject"}]})
    made.runner.episodes = rollouts([1.0, 0.0])
    training = step()
    asyncio.run(made.pipeline.run(training))
    assert (training.skip_reason, made.backend.calls) == ("not_today", [])
    assert training.metrics["batch/skipped_not_today"] == 1.0
    assert training.metrics["batch/groups_dropped_not_today"] == 1.0


def test_larger_draw_conflicts_with_mode_that_draws(plan: Any) -> None:
    with expect_error(ConfigError, "conflicting-keys", "2"):
        plan(DYNAMIC | {"rllm.rejection_sample.multiplier": 2})
