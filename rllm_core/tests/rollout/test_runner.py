"""Many rollouts at once: order, limits, retries, timeouts."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import virtual_time
from expecting import expect_error
from places import without_place

from rllm_core.contracts import Outcome, RolloutRequest, SamplingParams, Workflow, WorkflowContext
from rllm_core.data.types import Episode, Task, TerminationReason, Trajectory
from rllm_core.errors import (
    BackendError,
    ConfigError,
    PipelineError,
    PluginError,
    RewardError,
    RllmError,
    RolloutError,
)
from rllm_core.rollout.runner import RolloutRunner, RolloutSetup, RunnerSettings
from rllm_core.rollout.workflows import MultiTurnWorkflow, SingleTurnWorkflow

from .conftest import FunctionEnvironment

Body = Callable[["FunctionWorkflow", dict[str, Any], str], Any]


class FunctionWorkflow(Workflow):
    """A workflow made of one function."""

    body: Body

    def __init__(self, sampling: SamplingParams, body: Body) -> None:
        self.sampling = sampling
        self.body = body
        self.episode = None

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        made: Episode = await self.body(self, task, uid)
        return made


def _settings(**changes: Any) -> RunnerSettings:
    fields: dict[str, Any] = {
        "n_parallel_tasks": 4,
        "retry_limit": 3,
        "raise_on_error": True,
        "trajectory_timeout": None,
    }
    return RunnerSettings(**fields | changes)


def _order(tasks: int = 1, rollouts: int = 1, seed: int = 0, label: str = "train") -> RolloutRequest:
    return RolloutRequest(
        tasks=[Task(id=f"t{index}", data={"n": index}, data_source=f"s{index % 2}") for index in range(tasks)],
        rollouts=rollouts,
        sampling=SamplingParams(max_tokens=10, temperature=0.5, seed=seed),
        label=label,
    )


class Concurrent:
    """A body of workflows that counts how many run at once."""

    def __init__(self) -> None:
        self.under_way, self.most = 0, 0
        self.begun: list[float] = []

    async def __call__(self, workflow: FunctionWorkflow, task: dict[str, Any], uid: str) -> Episode:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.begun.append(workflow.sampling.temperature)
        await asyncio.sleep(0.01)
        self.under_way -= 1
        return Episode(id=uid)


def _run(body: Body, order: RolloutRequest | None = None, **settings: Any) -> list[Episode]:
    runner = RolloutRunner(lambda rollout: FunctionWorkflow(rollout.sampling, body), _settings(**settings))
    return virtual_time.run(runner.run(order or _order()))


async def _succeed(workflow: FunctionWorkflow, task: dict[str, Any], uid: str) -> Episode:
    return Episode(id=uid, is_correct=True)


def test_episodes_are_ordered_by_task_and_rollout() -> None:
    finished: list[str] = []

    async def slow_first(workflow: FunctionWorkflow, task: dict[str, Any], uid: str) -> Episode:
        await asyncio.sleep(0.03 if uid == "t0:0" else 0)
        finished.append(uid)
        return Episode(id=uid)

    episodes = _run(slow_first, _order(3, 2))
    assert [episode.id for episode in episodes] == ["t0:0", "t0:1", "t1:0", "t1:1", "t2:0", "t2:1"]
    assert [episode.data_source for episode in episodes] == ["s0", "s0", "s1", "s1", "s0", "s0"]
    assert finished[-1] == "t0:0"


def test_no_tasks_give_no_episodes() -> None:
    assert _run(_succeed, _order(0, 4)) == []


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_at_most_the_allowed_number_run_at_once(limit: int) -> None:
    body = Concurrent()
    _run(body, _order(5, 4), n_parallel_tasks=limit)
    assert body.most == min(limit, 20)


def test_concurrent_requests_share_slots_oldest_batch_first() -> None:
    body = Concurrent()

    async def both() -> None:
        runner = RolloutRunner(lambda rollout: FunctionWorkflow(rollout.sampling, body), _settings(n_parallel_tasks=2))
        newer, older = (
            replace(_order(2, 2), priority=age, sampling=SamplingParams(max_tokens=1, temperature=float(age)))
            for age in (1, 0)
        )
        await asyncio.gather(runner.run(newer), runner.run(older))

    virtual_time.run(both())
    assert (body.most, body.begun) == (2, [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0])


def _fails_at_first(times: int, error: BaseException) -> tuple[Body, list[int]]:
    """Return a function that fails `times` times and then succeeds, and a list for the seeds of all tries."""
    seeds: list[int] = []

    async def body(workflow: FunctionWorkflow, task: dict[str, Any], uid: str) -> Episode:
        seeds.append(workflow.sampling.seed)
        if len(seeds) <= times:
            raise error
        return Episode(id=uid, is_correct=True)

    return body, seeds


RETRIED = [
    ValueError("flaky"),
    RolloutError("made-up", "No answer."),
    RewardError("made-up", "No reward."),
    RllmError("made-up", "No luck."),
    SystemExit(3),
]


@pytest.mark.parametrize("error", RETRIED, ids=repr)
def test_failed_rollout_is_repeated_with_a_new_seed(error: BaseException) -> None:
    body, seeds = _fails_at_first(2, error)
    (episode,) = _run(body)
    assert (episode.is_correct, episode.metrics) == (True, {"retries": 2.0})
    assert len(set(seeds)) == 3
    body, seeds = _fails_at_first(100, error)
    (episode,) = _run(body, raise_on_error=False)
    assert episode.termination_reason is TerminationReason.ERROR
    assert without_place(episode.error) == f"{type(error).__name__}: {error}"
    assert len(seeds) == 3
    with expect_error(RolloutError, "rollout-failed", "'t0:0'") as caught:
        _run(_fails_at_first(100, error)[0])
    assert caught.value.__cause__ is error


def test_rollout_without_failure_has_no_retries() -> None:
    assert _run(_succeed)[0].metrics == {}


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_retry_limit_counts_the_first_try(limit: int) -> None:
    body, seeds = _fails_at_first(100, ValueError("broken"))
    with expect_error(RolloutError, "rollout-failed", f" {limit} times", "rllm.workflow.raise_on_error=false"):
        _run(body, retry_limit=limit)
    assert len(seeds) == limit


def test_failed_rollout_is_an_episode_with_its_error() -> None:
    async def second_fails(workflow: FunctionWorkflow, task: dict[str, Any], uid: str) -> Episode:
        if uid == "t1:0":
            raise KeyError("lost")
        return Episode(id=uid)

    episodes = _run(second_fails, _order(3), raise_on_error=False)
    assert [episode.id for episode in episodes] == ["t0:0", "t1:0", "t2:0"]
    failed = episodes[1]
    assert failed.termination_reason is TerminationReason.ERROR
    assert without_place(failed.error) == "KeyError: 'lost'"
    assert (failed.trajectories, failed.metrics, failed.data_source) == ([], {"retries": 2.0}, "s1")
    assert [episode.error for episode in episodes if episode is not failed] == ["", ""]


def test_failure_cancels_others_and_closes_environments(engine: Any, context: Any, hang: Any) -> None:
    worlds: list[Any] = []

    def make_environment() -> Any:
        number = len(worlds)

        async def step(action: str) -> Outcome:
            if number == 2:
                raise ValueError("boom")
            await hang()
            raise AssertionError("never reached")

        worlds.append(FunctionEnvironment(step=step))
        return worlds[-1]

    runner = RolloutRunner(
        lambda rollout: SingleTurnWorkflow(context(sampling=rollout.sampling, make_environment=make_environment)),
        _settings(retry_limit=1, n_parallel_tasks=3),
    )

    async def run() -> int:
        with expect_error(RolloutError, "rollout-failed", "'t2:0'", "1", "ValueError: boom"):
            await runner.run(_order(6))
        return len(asyncio.all_tasks())

    assert asyncio.run(run()) == 1  # nothing is left running
    assert [world.closed for world in worlds] == [1] * len(worlds)
    assert len(engine.ended) == len(worlds) < 6  # those that waited for their turn never started


def test_cancelling_the_run_cancels_all_rollouts(hang: Any) -> None:
    cleaned: list[str] = []

    async def body(workflow: FunctionWorkflow, task: dict[str, Any], uid: str) -> Episode:
        try:
            await hang()
        finally:
            await asyncio.sleep(0)
            cleaned.append(uid)
        raise AssertionError("never reached")

    async def run() -> None:
        runner = RolloutRunner(lambda rollout: FunctionWorkflow(rollout.sampling, body), _settings())
        async with asyncio.timeout(0.02):
            await runner.run(_order(3))

    with pytest.raises(TimeoutError):
        virtual_time.run(run())
    assert sorted(cleaned) == ["t0:0", "t1:0", "t2:0"]


def _runner_of(context: Any, make_environment: Any, kind: Any = SingleTurnWorkflow, **settings: Any) -> RolloutRunner:
    return RolloutRunner(
        lambda rollout: kind(context(sampling=rollout.sampling, make_environment=make_environment)),
        _settings(**settings),
    )


def test_timeout_keeps_finished_steps_without_a_retry(context: Callable[..., WorkflowContext], hang: Any) -> None:
    turns = itertools.count()
    worlds = []

    def step(action: str) -> Any:
        return Outcome(observation="more", reward=0.5) if next(turns) < 2 else hang()

    def make_environment() -> Any:
        worlds.append(FunctionEnvironment(step=step))
        return worlds[-1]

    runner = _runner_of(context, make_environment, MultiTurnWorkflow, trajectory_timeout=0.1)
    (episode,) = virtual_time.run(runner.run(_order()))
    assert episode.termination_reason is TerminationReason.TIMEOUT
    assert episode.error == "not finished after 0.1 s"
    assert len(episode.trajectories[0].steps) == 3
    assert episode.trajectories[0].reward == 1.0
    assert (episode.data_source, episode.metrics) == ("s0", {})
    assert [world.closed for world in worlds] == [1]


def test_hanging_environment_thread_affects_only_its_rollout(context: Callable[..., WorkflowContext]) -> None:
    release = threading.Event()
    worlds: list[Any] = []

    def make_environment() -> Any:
        hangs = len(worlds) == 0
        worlds.append(
            FunctionEnvironment(step=lambda action: Outcome(done=True, correct=not (hangs and release.wait())))
        )
        return worlds[-1]

    runner = RolloutRunner(
        lambda rollout: SingleTurnWorkflow(
            context(sampling=rollout.sampling, make_environment=make_environment, environment_blocks=True)
        ),
        _settings(trajectory_timeout=0.2),
    )

    def others_are_done() -> bool:
        closing = [thread for thread in threading.enumerate() if thread.name == "rllm-close"]
        return [world.closed for world in worlds[1:]] == [1, 1] and not closing

    try:
        episodes = virtual_time.run(runner.run(_order(3)), until=others_are_done)
    finally:
        release.set()
    assert [episode.termination_reason.value for episode in episodes] == ["timeout", "env_done", "env_done"]
    assert [world.closed for world in worlds] == [1, 1, 1]


def test_others_go_on_when_one_times_out(hang: Any) -> None:
    async def body(workflow: FunctionWorkflow, task: dict[str, Any], uid: str) -> Episode:
        if uid == "t1:0":
            await hang()
        return Episode(id=uid, termination_reason=TerminationReason.ENV_DONE)

    episodes = _run(body, _order(3), trajectory_timeout=0.05)
    assert [episode.termination_reason.value for episode in episodes] == ["env_done", "timeout", "env_done"]
    assert (episodes[1].id, episodes[1].trajectories) == ("t1:0", [])


async def _raise_timeout(hang: Any) -> None:
    raise TimeoutError("the server is slow")


async def _own_time_limit(hang: Any) -> None:
    async with asyncio.timeout(0.01):
        await hang()


async def _cancel_own_future(hang: Any) -> None:
    connection: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    connection.cancel()
    await connection


@pytest.mark.parametrize("limit", [None, 30.0])
@pytest.mark.parametrize(
    ("trouble", "error"),
    [
        (_raise_timeout, "TimeoutError"),
        (_own_time_limit, "TimeoutError"),
        (_cancel_own_future, "CancelledError"),
    ],
)
def test_timeouts_in_workflow_code_are_failures(trouble: Any, error: str, limit: Any, hang: Any) -> None:
    tries: list[str] = []

    async def body(workflow: FunctionWorkflow, task: dict[str, Any], uid: str) -> Episode:
        tries.append(uid)
        await trouble(hang)
        raise AssertionError("never reached")

    (episode,) = _run(body, raise_on_error=False, trajectory_timeout=limit)
    assert episode.termination_reason is TerminationReason.ERROR
    assert episode.error.startswith(error)
    assert len(tries) == 3


@pytest.mark.parametrize("kind", [ConfigError, PluginError, PipelineError, BackendError])
def test_permanent_errors_are_raised_without_retry(kind: type[RllmError]) -> None:
    error = kind("made-up", "Broken.")
    body, seeds = _fails_at_first(100, error)
    with pytest.raises(kind) as caught:
        _run(body, raise_on_error=False)
    assert caught.value is error
    assert len(seeds) == 1


def test_failing_workflow_constructor_is_named_in_the_error() -> None:
    def make(rollout: RolloutSetup) -> Workflow:
        raise ValueError("no such option")

    with expect_error(RolloutError, "rollout-failed", "'t0:0'", "ValueError"):
        asyncio.run(RolloutRunner(make, _settings()).run(_order()))


@pytest.mark.parametrize("result", [None, [], Trajectory("agent")])
def test_workflow_without_an_episode_is_an_error(result: Any) -> None:
    async def body(workflow: FunctionWorkflow, task: dict[str, Any], uid: str) -> Episode:
        return result  # type: ignore[no-any-return]

    with expect_error(PluginError, "bad-workflow-result", "FunctionWorkflow", "'t0:0'", "Return an Episode."):
        _run(body, raise_on_error=False)


def test_rollouts_have_their_own_ids_and_tasks() -> None:
    async def body(workflow: FunctionWorkflow, task: dict[str, Any], uid: str) -> Episode:
        assert task == {"n": 0}
        task["n"] = "spoilt"
        return Episode(id="something else")

    assert [episode.id for episode in _run(body, _order(1, 2))] == ["t0:0", "t0:1"]


def _seeds(order: RolloutRequest) -> dict[str, int]:
    seeds: dict[str, int] = {}

    async def body(workflow: FunctionWorkflow, task: dict[str, Any], uid: str) -> Episode:
        seeds[uid] = workflow.sampling.seed
        assert (workflow.sampling.temperature, workflow.sampling.max_tokens) == (0.5, 10)
        return Episode(id=uid)

    _run(body, order)
    return seeds


def test_rollout_seeds_differ_and_repeat_in_every_run() -> None:
    seeds = _seeds(_order(4, 4))
    assert len(set(seeds.values())) == 16
    assert _seeds(_order(4, 4)) == seeds
    assert _seeds(_order(1, 1)).items() <= seeds.items()  # other rollouts have no effect


@pytest.mark.parametrize("other", [_order(2, 2, seed=1), _order(2, 2, label="val")], ids=["seed", "label"])
def test_another_seed_or_label_gives_other_seeds(other: RolloutRequest) -> None:
    assert not set(_seeds(_order(2, 2)).values()) & set(_seeds(other).values())
