"""rLLM's tables of keys, first part: agent, environment, workflow, rollout. Each row is set and its effect is seen.

The other tables are in `test_seeds_tables_training.py` and `test_seeds_tables_filtering.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.tools.expecting import check_values, expect_error

from rllm.planning.unused_keys import core_keys
from rllm_core.data.types import Episode
from rllm_core.errors import ConfigError, RolloutError
from rllm_core.rollout.options import AgentWorkflowParams
from rllm_core.schema.run_config import RunConfig

TABLE: dict[str, Any] = {
    "rllm.agent.name": "math_agent",
    "rllm.agent.max_steps": 20,
    "rllm.agent.trajectory_timeout": None,
    "rllm.agent.overlong_filter": False,
    "rllm.agent.agent_args": {},
    "rllm.agent.engine_args": {},
    "rllm.env.name": "custom",
    "rllm.env.env_args": {},
    "rllm.workflow.use_workflow": False,
    "rllm.workflow.name": "single_turn_workflow",
    "rllm.workflow.workflow_args.agent_cls": None,
    "rllm.workflow.workflow_args.agent_args": {},
    "rllm.workflow.workflow_args.env_cls": None,
    "rllm.workflow.workflow_args.env_args": {},
    "rllm.workflow.workflow_args.timeout": 1e6,
    "rllm.workflow.workflow_args.gamma": 0.0,
    "rllm.workflow.workflow_args.reward_bonus_coeff": 0.0,
    "rllm.workflow.n_parallel_tasks": 256,
    "rllm.workflow.retry_limit": 3,
    "rllm.workflow.raise_on_error": True,
    "rllm.rollout.n": 8,
    "rllm.rollout.n_val": 1,
}
"""Name and default of each row."""
SHOWN: set[str] = set()


def shows(*names: str) -> Callable[[Any], Any]:
    """What a test is about."""
    SHOWN.update(names)
    return lambda test: test


def test_every_row_is_shown_to_have_an_effect_or_to_be_refused() -> None:
    assert set(TABLE) == SHOWN


def test_names_and_defaults_are_those_of_the_table() -> None:
    defaults = {key.dotted: key.default for key in core_keys(RunConfig())}
    options = AgentWorkflowParams().model_dump()
    defaults |= {f"rllm.workflow.workflow_args.{name}": value for name, value in options.items()}
    assert {name: defaults[name] for name in TABLE} == TABLE


def read_first_prompt(episode: Episode) -> str:
    """What the model of an episode saw before its first words."""
    from rllm_local.tiny import build_tokenizer

    return str(build_tokenizer().decode(episode.trajectories[0].steps[0].prompt_ids))


def turns(run: Any) -> set[int]:
    return {len(episode.trajectories[0].steps) for episode in run.episodes}


# Agent


@shows("rllm.agent.name")
def test_the_agent_chosen_by_name_acts(train: Any) -> None:
    run = train("sum", {"rllm.agent.name": "sure", "data.train_batch_size": 4})
    right = {episode.task_id for episode in run.episodes if episode.is_correct}
    assert right == {"sum-0-1", "sum-1-0"}, "it always answers 1"


@shows("rllm.agent.agent_args")
def test_options_reach_the_agent(train: Any) -> None:
    assert "<system>" not in read_first_prompt(train("sum").episodes[0])
    run = train("sum", {"rllm.agent.agent_args.system_prompt": "number"})
    assert read_first_prompt(run.episodes[0]).startswith("<system>number<end>")


@shows("rllm.agent.max_steps")
def test_an_attempt_ends_after_max_steps(train: Any) -> None:
    assert turns(train("guess")) == {5}
    run = train("guess", {"rllm.agent.max_steps": 2})
    assert turns(run) == {2}
    assert run.metrics["batch/ended_max_turns_exceeded"] == 1


@shows("rllm.agent.trajectory_timeout")
def test_an_attempt_ends_when_its_time_is_up(train: Any) -> None:
    run = train("slow", {"rllm.agent.trajectory_timeout": 0.1})
    assert run.metrics["batch/ended_timeout"] == 1


@shows("rllm.agent.overlong_filter")
def test_attempts_that_ran_out_of_turns_can_be_filtered_out(train: Any) -> None:
    short = {"rllm.agent.max_steps": 2}
    assert train("guess", short).metrics["batch/rows"] == 4
    run = train("guess", {**short, "rllm.agent.overlong_filter": True})
    assert run.metrics["batch/masked_max_turns_exceeded"] == 4
    assert run.metrics["batch/skipped_everything_masked"] == 1
    assert run.steps[0].batch is None


@shows("rllm.agent.engine_args")
def test_engine_args_are_refused_where_the_backend_takes_none(train: Any) -> None:
    with expect_error(ConfigError, "unused-key", "rllm.agent.engine_args"):
        train("sum", {"rllm.agent.engine_args": {"tensor_parallel": 2}})


# Environment


@shows("rllm.env.name")
def test_the_environment_chosen_by_name_is_played(train: Any) -> None:
    with expect_error(ConfigError, "no-environment", "`rllm train"):
        train(None)
    for name in ("sum", "guess"):
        assert {episode.data_source for episode in train(name).episodes} == {name}


@shows("rllm.env.env_args")
def test_options_reach_the_environment(train: Any) -> None:
    run = train(
        "sum", {"rllm.env.env_args": {"prompt": "is {a} plus {b}", "largest": 2}, "rllm.trainer.total_epochs": 1}
    )
    assert read_first_prompt(run.episodes[0]).startswith("is ")
    assert len(run.steps) == 5, "nine tasks, two at a time"


# Workflow


@shows("rllm.workflow.use_workflow")
def test_there_is_always_a_workflow_so_asking_for_one_is_warned_about(train: Any) -> None:
    run = train("sum", {"rllm.workflow.use_workflow": True})
    (warning,) = run.warnings
    check_values(warning, "`rllm.workflow.use_workflow` is true (from the test)", "`rllm.workflow.name`")


@shows("rllm.workflow.name")
def test_the_workflow_chosen_by_name_makes_the_attempts(train: Any) -> None:
    run = train("guess", {"rllm.workflow.name": "single_turn_workflow"})
    assert turns(run) == {1}


@shows("rllm.workflow.workflow_args.agent_cls", "rllm.workflow.workflow_args.agent_args")
def test_the_workflow_s_options_may_choose_the_agent(train: Any) -> None:
    options = {"agent_cls": "sure", "agent_args": {"word": "2"}}
    run = train("sum", {"rllm.workflow.workflow_args": options, "data.train_batch_size": 4})
    assert {episode.task_id for episode in run.episodes if episode.is_correct} == {"sum-1-1"}
    with pytest.raises(ConfigError, match=r"workflow_args\.agent_cls and rllm\.agent\.name are both set"):
        train("sum", {"rllm.workflow.workflow_args": options, "rllm.agent.name": "sure"})


@shows("rllm.workflow.workflow_args.env_cls", "rllm.workflow.workflow_args.env_args")
def test_the_workflow_s_options_may_choose_the_environment(train: Any) -> None:
    options = {"env_cls": "sum", "env_args": {"prompt": "plus", "largest": 1}}
    run = train(None, {"rllm.workflow.workflow_args": options, "data.max_response_length": 1})
    assert {episode.data_source for episode in run.episodes} == {"sum"}
    assert read_first_prompt(run.episodes[0]) == "plus"
    with pytest.raises(ConfigError, match=r"workflow_args\.env_cls and rllm\.env\.name are both set"):
        train("guess", {"rllm.workflow.workflow_args": options})


@shows("rllm.workflow.workflow_args.timeout")
def test_the_workflow_s_options_may_limit_the_time(train: Any) -> None:
    run = train("slow", {"rllm.workflow.workflow_args.timeout": 0.1, "rllm.agent.trajectory_timeout": 60.0})
    assert run.metrics["batch/ended_timeout"] == 1


@shows("rllm.workflow.workflow_args.gamma", "rllm.workflow.workflow_args.reward_bonus_coeff")
@pytest.mark.parametrize(
    ("option", "expected"),
    [({}, [1, 2, 4]), ({"gamma": 0.5}, [3, 4, 4]), ({"reward_bonus_coeff": 0.5}, [1, 2.5, 5])],
)
def test_rewards_of_steps_are_shaped(train: Any, option: dict[str, float], expected: list[float]) -> None:
    settings = {"rllm.workflow.workflow_args": option, "rllm.algorithm.adv_estimator": "step_rewards"}
    run = train("paying", settings | {"data.max_response_length": 1})
    batch = run.steps[0].batch
    assert batch.advantages[batch.loss_mask].tolist() == 4 * expected, "what the optimiser is given"
    assert {episode.trajectories[0].reward for episode in run.episodes} == {7}, "that of the attempt stays"


@pytest.mark.parametrize("option", ["gamma", "reward_bonus_coeff"])
def test_shaping_rewards_that_the_estimator_does_not_read_is_refused(train: Any, option: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"workflow_args\.{option}` is 0.5 .* has no effect: .* estimator grpo reads"
    ):
        train("paying", {f"rllm.workflow.workflow_args.{option}": 0.5})


@shows("rllm.workflow.n_parallel_tasks")
@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_attempts_are_under_way_at_once(train: Any, limit: int) -> None:
    run = train("crowded", {"rllm.workflow.n_parallel_tasks": limit, "data.max_response_length": 1})
    assert max(episode.metrics["under_way"] for episode in run.episodes) == limit


@shows("rllm.workflow.retry_limit", "rllm.workflow.raise_on_error")
def test_a_failing_attempt_is_tried_again_and_then_ends_the_run_or_itself(train: Any) -> None:
    with expect_error(RolloutError, "rollout-failed", " 5 ", "RuntimeError: the world has ended"):
        train("failing", {"rllm.workflow.retry_limit": 5})
    run = train("failing", {"rllm.workflow.retry_limit": 2, "rllm.workflow.raise_on_error": False})
    assert run.metrics["batch/ended_error"] == 1
    assert [episode.metrics["retries"] for episode in run.episodes] == [1, 1, 1, 1]


# Rollout


@shows("rllm.rollout.n")
def test_every_task_of_a_step_is_played_n_times(train: Any) -> None:
    run = train("sum", {"rllm.rollout.n": 5})
    assert len(run.episodes) == 2 * 5
    assert [len(group.trajectories) for group in run.steps[0].trajectory_groups] == [5, 5]


@shows("rllm.rollout.n_val")
def test_every_validation_task_is_played_n_val_times(train: Any) -> None:
    run = train("sum", {"rllm.rollout.n_val": 3})
    assert {"val/sum/pass@1", "val/sum/pass@3"} <= set(run.history[-1])
