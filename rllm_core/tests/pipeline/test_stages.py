"""Each built-in stage by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from expecting import expect_error

from rllm_core.contracts import ALWAYS_FILLED, Advantages, NoParams, TrainStep
from rllm_core.data.batch import build_batch
from rllm_core.data.types import Episode, Step, Task, TerminationReason, Trajectory, TrajectoryGroup
from rllm_core.errors import CheckpointError, PipelineError, RewardError, RolloutError
from rllm_core.seeding import derive_seed

MakeStep = Callable[..., TrainStep]


def _run(stage: Any, step: TrainStep) -> TrainStep:
    asyncio.run(stage(step))
    return step


def _group(*rewards: float | None, group_id: str = "t:agent") -> TrajectoryGroup:
    return TrajectoryGroup(
        group_id=group_id,
        trajectories=[Trajectory("agent", [Step([1], [2], [-1.0])], reward) for reward in rewards],
        metadata=[{"task_id": "t", "rollout_idx": index} for index in range(len(rewards))],
    )


def test_generate_runs_tasks_with_the_steps_seed(bench: Any, step: MakeStep, rollouts: Any) -> None:
    made = bench({"rllm.rollout.n": 5, "sampling.train.temperature": 0.75, "data.max_response_length": 7})
    made.runner.episodes = rollouts([1.0, 0.0])
    tasks = [Task(id="a"), Task(id="b")]
    done = _run(made.stage("generate"), step(tasks=tasks, global_step=4, task_batch=9))
    (order,) = made.runner.orders
    assert (order.tasks, order.rollouts, order.label) == (tasks, 5, "train")
    assert (order.sampling.temperature, order.sampling.max_tokens) == (0.75, 7)
    assert order.sampling.seed == derive_seed(3, "rollout", 9)
    assert done.episodes == done.generated == made.runner.episodes
    assert done.episodes is not done.generated
    assert done.metrics["batch/solved"] == 0.5


DIVIDES = {"rllm.algorithm.loss_fn": "divides"}
CORRECTS = {"rllm.algorithm.rollout_correction.tis_mode": "token"}


@pytest.mark.parametrize(
    ("settings", "logprobs", "code", "values"),
    [
        # The backend left them unknown, or the workflow reported what is no log-prob.
        ({}, [None, None], "logprobs-not-finite", ["2 of 3 sampled tokens", "the first (nan) in trajectory 0 of"]),
        ({}, [-np.inf], "logprobs-not-finite", ["trajectory 0 of group 'u:agent'"]),
        ({}, [np.inf], "logprobs-not-finite", ["trajectory 0 of group 'u:agent'"]),
        (CORRECTS, [None, None], "missing-logprobs", ["tis_mode=token"]),
        (DIVIDES, [None, None], "missing-logprobs", ["'divides'", "'agent'"]),
    ],
    ids=str,
)
def test_unusable_logprobs_stop_the_run(
    bench: Any, step: MakeStep, offer: Any, settings: Any, logprobs: list[Any], code: str, values: list[str]
) -> None:
    offer("loss", "divides", len, needs=frozenset({"sampling_logprobs"}))
    other = Trajectory("agent", [Step([1], [2] * len(logprobs), logprobs)], 0.0)
    groups = [_group(1.0), TrajectoryGroup(group_id="u:agent", trajectories=[other])]
    with expect_error(RolloutError, code, *values):
        _run(bench(settings).stage("process"), step(batch=build_batch(groups)))


def test_impute_names_gives_the_nameless_a_name(bench: Any, step: MakeStep) -> None:
    one, several = Trajectory(), [Trajectory(), Trajectory("judge"), Trajectory()]
    _run(
        bench().stage("impute_names"),
        step(episodes=[Episode(id="t:0", trajectories=[one]), Episode(id="t:1", trajectories=several)]),
    )
    assert one.name == "agent"
    assert [trajectory.name for trajectory in several] == ["agent_0", "judge", "agent_1"]


ROOM = {"max_prompt_length_exceeded": 1.0, "max_response_length_exceeded": 1.0, "max_turns_exceeded": 1.0}


@pytest.mark.parametrize(
    ("settings", "kept", "masked"),
    [
        ({}, [*(reason.value for reason in TerminationReason), "timeout"], {}),
        ({"rllm.compact_filtering.enable": True}, ["env_done", "unknown"], ROOM | {"timeout": 2.0, "error": 1.0}),
        ({"rllm.agent.overlong_filter": True}, ["env_done", "error", "unknown"], ROOM | {"timeout": 2.0}),
    ],
)
def test_compact_filter_masks_and_counts_rollouts(bench: Any, step: Any, settings: Any, kept: Any, masked: Any) -> None:
    episodes = [
        Episode(id=f"t:{index}", trajectories=[Trajectory("agent")], termination_reason=reason)
        for index, reason in enumerate([*TerminationReason, TerminationReason.TIMEOUT])
    ]
    done = _run(bench(settings).stage("compact_filter"), step(episodes=episodes))
    assert sorted(episode.termination_reason.value for episode in done.episodes) == sorted(kept)
    assert done.metrics == {f"batch/masked_{reason}": count for reason, count in masked.items()}


def _finishing_with(*reasons: str) -> list[Trajectory]:
    steps = [Step([1], [2], [-1.0], info={"finish_reason": reason}) for reason in reasons]
    return [Trajectory("agent", [Step([1], [2], [-1.0], info={"finish_reason": "length"}), step]) for step in steps]


TRUNCATED = {"rllm.mask_truncated_samples": True}


def test_trajectories_without_a_finish_reason_are_not_truncated(bench: Any, step: MakeStep) -> None:
    episodes = [Episode(id="t:0", trajectories=[Trajectory("agent"), Trajectory("agent", [Step([1], [2], [-1.0])])])]
    done = _run(bench(TRUNCATED).stage("compact_filter"), step(episodes=episodes))
    assert (done.episodes, done.metrics) == (episodes, {"batch/masked_truncated": 0.0})


def test_trajectories_of_masked_rollouts_are_not_counted_again(bench: Any, step: MakeStep) -> None:
    partly = Episode(id="t:2", trajectories=_finishing_with("length", "stop", "length"), is_correct=True)
    episodes = [
        Episode(id="t:0", trajectories=_finishing_with("length"), termination_reason=TerminationReason.TIMEOUT),
        Episode(id="t:1", trajectories=_finishing_with("length")),
        partly,
        Episode(id="t:3", trajectories=_finishing_with("stop")),
    ]
    stage = bench(TRUNCATED | {"rllm.agent.overlong_filter": True}).stage("compact_filter")
    done = _run(stage, step(generated=episodes, episodes=episodes))
    assert [(episode.id, episode.is_correct) for episode in done.episodes] == [("t:2", True), ("t:3", False)]
    assert done.episodes[0].trajectories == partly.trajectories[1:2]
    assert (done.metrics["batch/masked_timeout"], done.metrics["batch/masked_truncated"]) == (1.0, 3.0)
    assert [len(episode.trajectories) for episode in done.generated] == [1, 1, 3, 1]  # unchanged


@pytest.mark.parametrize(
    ("settings", "others"),
    [(TRUNCATED, []), (TRUNCATED, [Episode(id="t:0")]), ({"rllm.agent.overlong_filter": True}, [])],
    ids=str,
)
def test_step_without_unmasked_trajectories_is_skipped(bench: Any, step: MakeStep, settings: Any, others: Any) -> None:
    cut_off = TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED
    episodes = [*others, Episode(id="t:1", trajectories=_finishing_with("length"), termination_reason=cut_off)]
    assert _run(bench(settings).stage("compact_filter"), step(episodes=episodes)).skip_reason == "everything_masked"


def test_group_counts_prefix_breaks(bench: Any, step: MakeStep) -> None:
    broken = Trajectory("agent", [Step([1], [2], [-1.0]), Step([9], [2], [-1.0]), Step([8], [2], [-1.0])])
    episodes = [Episode(id="a:0", trajectories=[broken]), Episode(id="a:1", trajectories=[Trajectory("agent")])]
    done = _run(bench().stage("group"), step(episodes=episodes))
    assert [(group.group_id, len(group.trajectories)) for group in done.trajectory_groups] == [("a:agent", 2)]
    assert done.metrics == {"batch/prefix_breaks": 2.0, "batch/trajectories_ungrouped": 0.0}


@pytest.fixture
def grouped(bench: Any, step: MakeStep, offer: Any) -> Callable[[Any], TrainStep]:
    """A step of two rollouts after a grouping made of this function of the trajectories."""

    def run(body: Any) -> TrainStep:
        def grouping(episodes: Any, params: NoParams) -> Any:
            return body([t for episode in episodes for t in episode.trajectories])

        offer("grouping", "mine", grouping)
        episodes = [Episode(id=f"t:{index}", trajectories=[Trajectory("agent")]) for index in range(2)]
        return _run(bench({"rllm.transform.grouping": "mine"}).stage("group"), step(episodes=episodes))

    return run


def _one_group(trajectories: list[Trajectory], **fields: Any) -> TrajectoryGroup:
    return TrajectoryGroup(group_id="t:a", trajectories=trajectories, **fields)


@pytest.mark.parametrize(
    ("body", "ungrouped"),
    [
        (lambda made: [_one_group(made)], 0),
        (lambda made: [_one_group(made, metadata=[{}, {}])], 0),
        (lambda made: [_one_group(made[:1])], 1),
        # A trajectory in two groups, and a new one.
        (lambda made: [_one_group(part) for part in (made[:1], made[:1], [Trajectory("new")])], 1),
    ],
)
def test_trajectories_in_no_group_are_counted(grouped: Any, body: Any, ungrouped: int) -> None:
    assert grouped(body).metrics["batch/trajectories_ungrouped"] == ungrouped


def test_rllm_error_of_a_grouping_is_unchanged(grouped: Any) -> None:
    error = RewardError("made-up", "No reward.")

    def grouping(made: list[Trajectory]) -> Any:
        raise error

    with pytest.raises(RewardError) as caught:
        grouped(grouping)
    assert caught.value is error


async def _promise() -> list[TrajectoryGroup]:
    return []


@pytest.mark.parametrize(
    ("give", "code", "value"),
    [
        (lambda made: None, "bad-grouping-result", "None"),
        (lambda made: {"t": made}, "bad-grouping-result", "{'t': [Trajectory"),
        (lambda made: (_one_group(made),), "bad-grouping-result", "(TrajectoryGroup"),
        (lambda made: [_one_group(made), 3], "bad-grouping-result", "a list with 3 in it."),
        (lambda made: _promise(), "bad-grouping-result", "<coroutine object"),
        (lambda made: [_one_group(made, metadata=[{}])], "bad-grouping-result", "1"),
        (lambda made: [_one_group(made, metadata=[{}] * 3)], "bad-grouping-result", "3"),
        (lambda made: made[7], "plugin-failed", "IndexError"),
    ],
)
def test_a_grouping_that_fails_is_named(grouped: Any, give: Any, code: str, value: str) -> None:
    with expect_error(PipelineError, code, "'mine'", value):
        grouped(give)


UNUSABLE = pytest.mark.parametrize("reward", [None, float("nan"), float("inf")], ids=str)


@pytest.mark.parametrize("reward", [None, float("nan"), float("inf"), float("-inf"), "1.0"], ids=str)
def test_check_rewards_stops_at_an_unusable_reward(bench: Any, step: MakeStep, reward: Any) -> None:
    groups = [_group(1.0, 0.0), _group(0.5, reward)]
    key = "rllm.algorithm.on_missing_reward=drop or =zero"
    with expect_error(RewardError, "missing-reward", "'agent'", "'t:1'", repr(reward), key):
        _run(bench().stage("check_rewards"), step(trajectory_groups=groups))


@UNUSABLE
def test_check_rewards_can_drop(bench: Any, step: MakeStep, reward: float | None) -> None:
    groups = [_group(reward, 0.5, reward, 1.0), _group(1.0), _group(reward, 2.0), _group(reward)]
    gone = groups[0].trajectories[0]
    stage = bench({"rllm.algorithm.on_missing_reward": "drop"}).stage("check_rewards")
    done = _run(stage, step(trajectory_groups=groups))
    assert [[t.reward for t in group.trajectories] for group in done.trajectory_groups] == [[0.5, 1.0], [1.0], [2.0]]
    assert [[entry["rollout_idx"] for entry in group.metadata] for group in groups[:3]] == [[1, 3], [0], [1]]
    assert done.metrics["batch/missing_rewards"] == 4
    assert done.metrics["reward/agent/mean"] == pytest.approx(4.5 / 4)
    assert str(gone.reward) == str(reward)  # what was dropped keeps what it had


@UNUSABLE
def test_check_rewards_can_take_zero(bench: Any, step: MakeStep, reward: float | None) -> None:
    stage = bench({"rllm.algorithm.on_missing_reward": "zero"}).stage("check_rewards")
    done = _run(stage, step(trajectory_groups=[_group(reward, 0.5), _group(reward)]))
    assert [[t.reward for t in group.trajectories] for group in done.trajectory_groups] == [[0.0, 0.5], [0.0]]
    assert (done.metrics["batch/missing_rewards"], done.skip_reason) == (2, "")


@pytest.mark.parametrize("policy", ["error", "drop", "zero"])
def test_check_rewards_counts_zero_when_all_is_well(bench: Any, step: MakeStep, policy: str) -> None:
    stage = bench({"rllm.algorithm.on_missing_reward": policy}).stage("check_rewards")
    done = _run(stage, step(trajectory_groups=[_group(1.0, 0.0)]))
    assert done.metrics["batch/missing_rewards"] == 0
    assert [t.reward for t in done.trajectory_groups[0].trajectories] == [1.0, 0.0]


def test_group_without_rewards_takes_last_step_rewards(bench: Any, step: MakeStep) -> None:
    group = _group(None, None)
    for trajectory, reward in zip(group.trajectories, (0.25, 0.75), strict=True):
        trajectory.steps.append(Step([1, 2], [3], [-1.0], reward=reward))
    done = _run(bench().stage("check_rewards"), step(trajectory_groups=[group]))
    assert [t.reward for t in done.trajectory_groups[0].trajectories] == [0.25, 0.75]


def test_group_with_one_reward_ignores_step_rewards(bench: Any, step: MakeStep) -> None:
    group = _group(1.0, None)
    group.trajectories[1].steps[-1].reward = 0.5
    with pytest.raises(RewardError, match="episode 't:1' has reward None"):
        _run(bench().stage("check_rewards"), step(trajectory_groups=[group]))


def test_reject_keeps_everything_unless_it_is_on(bench: Any, step: MakeStep) -> None:
    groups = [_group(1.0), _group(0.5, 0.5)]
    assert _run(bench().stage("reject"), step(trajectory_groups=groups)).trajectory_groups == groups


ON = {"rllm.rejection_sample.enable": True}
EPISODE = ON | {"rllm.rejection_sample.mode": "episode"}


def _waiting(bench: Any, step: MakeStep) -> dict[str, Any]:
    """The state of a reject stage that keeps a group for later."""
    stage = bench(EPISODE).stage("reject")
    assert _run(stage, step(trajectory_groups=[_group(1.0, 1.0)])).skip_reason == "waiting_for_more_groups"
    state: dict[str, Any] = stage.state_dict()
    return state


def test_reject_saves_state_under_the_modes_name(bench: Any, step: MakeStep) -> None:
    assert bench().stage("reject").state_dict() == {"mode": "rllm-core/none", "state": {}, "waiting": []}
    assert bench(ON).stage("reject").state_dict() == {"mode": "rllm-core/group", "state": {}, "waiting": []}
    state = _waiting(bench, step)
    assert (state["mode"], len(state["state"]["gathered"]), len(state["waiting"])) == ("rllm-core/episode", 1, 1)
    again = bench(EPISODE).stage("reject")
    again.load_state_dict(state)
    assert again.state_dict() == state


@pytest.mark.parametrize(("settings", "other"), [({}, ON), (ON, {})], ids=["none", "group"])
def test_reject_refuses_the_state_of_another_mode(bench: Any, step: MakeStep, settings: Any, other: Any) -> None:
    stage = bench(settings).stage("reject")
    own = stage.state_dict()
    with expect_error(CheckpointError, "run-changed", "rllm-core/episode", own["mode"], "rllm.rejection_sample.mode"):
        stage.load_state_dict(_waiting(bench, step))
    # Nothing waits in either here, so nothing can be lost.
    for following in (EPISODE, other):
        bench(following).stage("reject").load_state_dict(own)


def test_build_batch_counts_rows_and_tokens(bench: Any, step: MakeStep) -> None:
    done = _run(bench().stage("build_batch"), step(trajectory_groups=[_group(1.0, 0.0)]))
    assert done.filled_batch.n_rows == 2
    counted = {name: value for name, value in done.metrics.items() if name.startswith("batch/")}
    assert counted == {"batch/rows": 2.0, "batch/tokens": 4.0}


@pytest.mark.parametrize("made", [0, 3])
def test_build_batch_reports_the_age_of_tokens(bench: Any, step: MakeStep, made: int) -> None:
    done = _run(bench().stage("build_batch"), step(trajectory_groups=[_group(1.0, 0.0)], weight_version=made))
    staleness = {name: value for name, value in done.metrics.items() if name.startswith("staleness/")}
    assert staleness == {"staleness/mean": made, "staleness/max": made, "staleness/share": float(made > 0)}


@pytest.mark.parametrize("estimator", ["grpo", "stepwise"])
def test_process_requests_columns_that_are_not_always_there(bench: Any, step: Any, offer: Any, estimator: str) -> None:
    offer("estimator", "stepwise", needs=ALWAYS_FILLED | {"old_logprobs"})
    made = bench({"rllm.algorithm.adv_estimator": estimator})
    done = _run(made.stage("process"), step(batch=build_batch([_group(1.0)])))
    assert made.backend.calls == [("process", frozenset({"old_logprobs"}))]
    assert done.filled_batch.old_logprobs is not None


def test_process_stops_if_a_needed_column_is_empty(bench: Any, step: MakeStep) -> None:
    made = bench()

    async def forget(batch: Any, needs: frozenset[str]) -> Any:
        return batch

    made.backend.process = forget
    with expect_error(PipelineError, "missing-estimator-input", "old_logprobs", "`process`"):
        _run(made.stage("process"), step(batch=build_batch([_group(1.0)])))


def test_advantages_uses_the_estimator_of_each_role(bench: Any, step: MakeStep, offer: Any) -> None:
    loads: list[str] = []

    def load() -> Any:
        loads.append("doubled")
        return lambda inputs, params: Advantages(values=2 * inputs.rewards)

    offer("estimator", "doubled", load=load)
    made = bench(
        {
            "rllm.algorithm.adv_estimator": {"name": "grpo", "norm_adv_by_std_in_grpo": False},
            "rllm.algorithm.estimator_map": {"judge": "doubled"},
        }
    )
    batch = build_batch([_group(1.0, 0.0), _group(3.0, 4.0, group_id="t:judge")])
    batch = batch.with_columns(old_logprobs=np.full(8, -2.0, np.float32))
    stage = made.stage("advantages")
    for _ in range(2):
        done = _run(stage, step(batch=batch))
        assert done.filled_batch.advantages is not None
        assert done.filled_batch.advantages.tolist() == [0, 0.5, 0, -0.5, 0, 6, 0, 8]
        assert done.filled_batch.old_logprobs is batch.old_logprobs
    assert loads == ["doubled"]  # once for the run, not once per step
    assert done.metrics["advantage/judge/mean"] == 7


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"enable": True, "normalize_by_steps": True}, [0.0, 0.25, 0.0, 0.25, 0.0, -0.5]),
        ({"enable": True}, [0.0, 0.5, 0.0, 0.5, 0.0, -0.5]),
        ({}, [0.0, 0.5, 0.0, 0.5, 0.0, -0.5]),
    ],
)
def test_advantages_can_be_divided_by_steps(bench: Any, step: MakeStep, settings: Any, expected: list[float]) -> None:
    group = _group(1.0, 0.0)
    group.trajectories[0].steps.append(Step([1, 2, 3], [4], [-1.0]))
    stepwise = {f"rllm.stepwise_advantage.{name}": value for name, value in settings.items()}
    made = bench({"rllm.algorithm.norm_adv_by_std_in_grpo": False} | stepwise)
    done = _run(made.stage("advantages"), step(batch=build_batch([group])))
    assert done.filled_batch.advantages is not None
    assert done.filled_batch.advantages.tolist() == expected
    assert done.metrics["advantage/agent/max"] == max(expected)


def test_update_passes_on_losses_aggregation_entropy_and_seed(bench: Any, step: MakeStep) -> None:
    made = bench(
        {
            "rllm.algorithm.loss_agg_mode": "seq-mean-token-mean",
            "rllm.algorithm.entropy": {"coeff": 0.4, "final_coeff": 0.0, "decay_steps": 8},
            "rllm.algorithm.loss_map": {"judge": {"name": "ppo", "eps_clip": 0.5}},
        }
    )
    batch = build_batch([_group(1.0), _group(1.0, group_id="t:judge")])
    done = _run(made.stage("update"), step(batch=batch, weight_version=6))
    (_, (given, plan)), synced = made.backend.calls
    assert given is batch
    assert plan.losses["agent"].params.eps_clip == 0.2
    assert plan.losses["judge"].params.eps_clip == 0.5
    assert (plan.aggregation, plan.global_step, plan.seed) == ("seq-mean-token-mean", 4, derive_seed(3, "update", 4))
    assert plan.entropy_coeff == done.metrics["actor/entropy_coeff"] == pytest.approx(0.2)
    assert not plan.trace
    assert synced == ("sync_weights", 7)
    assert done.weight_version == 7
    assert done.metrics["actor/loss"] == 0.5


def test_update_counts_a_version_after_weight_sync(bench: Any, step: MakeStep) -> None:
    made = bench()

    async def fail(version: int) -> None:
        raise ConnectionError("gone")

    made.backend.sync_weights = fail
    training = step(batch=build_batch([_group(1.0)]))
    with pytest.raises(ConnectionError):
        _run(made.stage("update"), training)
    assert training.weight_version == 0


def test_log_completes_the_metrics(bench: Any, step: MakeStep) -> None:
    made = bench()
    done = step(timing_dict={"generate": 3.0, "update": 1.0}, weight_version=2, metrics={"mine": 1.0})
    done.generated = [Episode(id="t:0", trajectories=_group(1.0, 0.0).trajectories)]  # masked since, but sampled
    _run(made.stage("log"), done)
    times = {"time/generate": 3.0, "time/update": 1.0, "time/step": 4.0, "time/tokens_per_second": 0.5}
    assert made.logged == [(4, {"mine": 1.0, "train/epoch": 1.0, "train/weight_version": 2.0} | times)]
