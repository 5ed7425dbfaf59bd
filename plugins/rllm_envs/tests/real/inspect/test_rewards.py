"""Tasks of inspect get the scores that inspect gives, and their tokens are in the batch once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import eval as evaluate
from inspect_ai.log import EvalSample
from inspect_ai.model import get_model
from inspect_ai.scorer import value_to_float
from scripted_engine import Engine

from rllm_core.algorithms.columns import REWARD_COMPONENTS, REWARD_ERROR
from rllm_core.data.types import Episode
from rllm_envs.inspect.options import InspectParams

from .bridge import TASKS, episodes, make_params
from .script import mock_outputs, say_to_prompt

KINDS: dict[str, tuple[InspectParams, str, str | None]] = {
    "match": (make_params("sums"), "match", None),
    "multiple choice": (make_params("letters"), "choice", None),
    "tools": (make_params("hours"), "match", None),
    "grader": (make_params("graded"), "model_graded_qa", None),
    "several turns": (make_params("guesses", reward="right_and_turns.right"), "right_and_turns", "right"),
    "number": (make_params("guesses", reward="right_and_turns.turns"), "right_and_turns", "turns"),
}


def evaluate_with_inspect(name: str, directory: Path, **options: Any) -> Sequence[EvalSample]:
    """Return the samples of inspect's own evaluation, in order."""
    model = get_model("mockllm/model", custom_outputs=mock_outputs(), memoize=False)
    (log,) = evaluate(f"{TASKS}@{name}", model=model, log_dir=str(directory), ctl_server=False, **options)
    assert log.status == "success", log.error
    assert log.samples
    return log.samples


@pytest.mark.parametrize("kind", KINDS)
def test_rewards_equal_those_of_inspect(kind: str, tmp_path: Path) -> None:
    params, scorer, key = KINDS[kind]
    theirs = [_read(each, scorer, key) for each in evaluate_with_inspect(params.task.partition(":")[2], tmp_path)]
    ours, engine = episodes(say_to_prompt, params)
    assert [_reward(episode) for episode in ours] == theirs
    assert len(set(theirs)) > 1
    _assert_trained_tokens_are_sampled_once(ours, engine)


def _read(sample: EvalSample, scorer: str, key: str | None) -> float | None:
    assert sample.scores
    value: Any = sample.scores[scorer].value
    number = value_to_float()(value[key] if key else value)
    return number if number == number else None


def _reward(episode: Episode) -> float | None:
    (trajectory,) = episode.trajectories
    return trajectory.reward


def _assert_trained_tokens_are_sampled_once(ours: Sequence[Episode], engine: Engine) -> None:
    """Each call of the policy is one step, token for token, and no call of the grader is one."""
    steps = Counter(
        (tuple(step.prompt_ids.tolist()), tuple(step.response_ids.tolist()))
        for episode in ours
        for trajectory in episode.trajectories
        for step in trajectory.steps
    )
    calls = [(tuple(prompt), tuple(response)) for prompt, response in engine.calls]
    trained = [call for call in calls if "[BEGIN DATA]" not in "".join(map(chr, call[0]))]
    assert steps == Counter(trained)
    metrics = [episode.metrics for episode in ours]
    assert sum(each["gateway/sampled_tokens"] for each in metrics) == sum(len(response) for _, response in calls)
    assert sum(each["gateway/trained_tokens"] for each in metrics) == sum(len(response) for _, response in trained)


def test_grader_is_a_seat_and_ungraded_lacks_reward() -> None:
    ours, engine = episodes(say_to_prompt, make_params("graded"))
    assert [_reward(episode) for episode in ours] == [None, 1.0, 0.5]
    assert len(engine.calls) == 2 * len(ours)
    assert all(episode.metrics["gateway/excluded_tokens/untrained_seat"] > 0 for episode in ours)
    assert "grade" in ours[0].trajectories[0].info[REWARD_ERROR]


def test_grader_can_be_a_different_model() -> None:
    grader = {"model": "mockllm/model", "custom_outputs": mock_outputs(), "config": {"temperature": 0}}
    ours, engine = episodes(say_to_prompt, make_params("graded", model_roles={"grader": grader}))
    assert len(engine.calls) == len(ours)
    assert [_reward(episode) for episode in ours] == [None, 1.0, 0.5]


def test_all_scores_are_components() -> None:
    ours, _ = episodes(say_to_prompt, make_params("guesses", reward="right_and_turns.right"))
    assert [each.trajectories[0].info[REWARD_COMPONENTS] for each in ours] == [
        {"right_and_turns.right": 1, "right_and_turns.turns": 1},
        {"right_and_turns.right": 1, "right_and_turns.turns": 3},
        {"right_and_turns.right": 0, "right_and_turns.turns": 3},
    ]


@pytest.mark.parametrize("of_the_task", [True, False])
def test_turn_limit_keeps_the_score(of_the_task: bool, tmp_path: Path) -> None:
    reward = "right_and_turns.turns"
    params = make_params("guesses", reward=reward, args={"turn_limit": 2} if of_the_task else {})
    ours, _ = episodes(say_to_prompt, params, 20 if of_the_task else 2)
    theirs = evaluate_with_inspect("guesses", tmp_path, turn_limit=2)
    assert [_reward(episode) for episode in ours] == [_read(each, "right_and_turns", "turns") for each in theirs]
    assert [episode.termination_reason.value for episode in ours] == ["env_done", *["max_turns_exceeded"] * 2]
