"""A failure of verifiers is a missing reward with its cause."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import expect_error

from rllm_core.algorithms.columns import REWARD_ERROR
from rllm_core.errors import ConfigError, RolloutError
from rllm_envs.verifiers.loading import check_environment
from rllm_envs.verifiers.options import VerifiersParams

from .bridge import episodes
from .script import say_to_prompt

NOWHERE = {"id": "reference", "model": "judge", "base_url": "http://127.0.0.1:9/v1", "api_key_var": "NO_KEY"}


def test_reward_that_raises_is_missing_with_cause() -> None:
    (right, broken), _ = episodes(say_to_prompt, id="vf_adds", config={"taskset": {"fails_at": 2}})
    assert [trajectory.reward for trajectory in right.trajectories] == [1.25]
    (trajectory,) = broken.trajectories
    assert (trajectory.reward, [step.reward for step in trajectory.steps]) == (None, [None])
    assert "the sandbox is gone" in trajectory.info[REWARD_ERROR]


def test_judge_without_endpoint_gives_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_KEY", "none")
    judged, _ = episodes(say_to_prompt, id="vf_judged", config={"taskset": {"task": {"judges": [NOWHERE]}}})
    for episode in judged:
        (trajectory,) = episode.trajectories
        assert trajectory.reward is None
        assert trajectory.info[REWARD_ERROR]


def test_failed_seat_takes_the_rewards_of_its_episode() -> None:
    """The writer's endpoint is down, and the solver gets no sum."""
    config = {"writer": {"client": {"type": "eval", "base_url": "http://127.0.0.1:9/v1", "api_key_var": "NO_KEY"}}}
    duels, _ = episodes(say_to_prompt, id="vf_duel", config=config)
    for episode in duels:
        (solver,) = episode.trajectories
        assert (solver.name, solver.reward) == ("solver", None)
        assert "ProviderError" in solver.info[REWARD_ERROR]


def test_failure_before_a_call_is_a_failed_rollout() -> None:
    with expect_error(RolloutError, "environment-failed"):
        episodes(say_to_prompt, id="vf_adds", config={"taskset": {"unprepared": True}})


def test_turn_limit_of_a_seat_keeps_its_reward() -> None:
    config = {"assistant": {"max_turns": 2}}
    errands, _ = episodes(lambda prompt: "One moment.", id="vf_errands", env="user-sim", config=config)
    for episode in errands:
        assert episode.termination_reason.value == "max_turns_exceeded"
        assert [(each.reward, len(each.steps)) for each in episode.trajectories] == [(0.2, 2)]


@pytest.mark.parametrize(
    ("code", "options"),
    {
        "unknown taskset": ("missing-package", {"id": "no_such_taskset"}),
        "module that a taskset imports": ("missing-package", {"id": "vf_needs_more"}),
        "unknown setting": ("environment-options-rejected", {"config": {"taskset": {"tusks": 3}}}),
        "unknown seat": ("unknown-choice", {"trained": ["solver"]}),
        "judge without a key": (
            "missing-api-key",
            {"config": {"taskset": {"task": {"judges": [{**NOWHERE, "api_key_var": "KEY_OF_NOBODY"}]}}}},
        ),
        "sandbox without an account": ("missing-api-key", {"config": {"agent": {"runtime": {"type": "prime"}}}}),
    }.values(),
)
def test_dry_run_names_what_is_missing(code: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRIME_API_KEY", raising=False)
    with expect_error(ConfigError, code):
        check_environment(VerifiersParams(**{"id": "vf_adds", **options}))


def test_tool_server_that_ends_is_named() -> None:
    with expect_error(ConfigError, "environment-options-rejected") as raised:
        episodes(say_to_prompt, id="vf_tools_that_end")
    assert "vf_tools_that_end' does not start" in raised.value.message


def test_tool_server_needs_no_python_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH")
    episodes(say_to_prompt, id="vf_tools")
