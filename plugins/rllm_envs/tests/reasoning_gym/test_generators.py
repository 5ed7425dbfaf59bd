"""Every generator of reasoning-gym makes entries, and pays for its own answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from expecting import expect_error
from reasoning_gym.factory import DATASETS

from rllm_core.errors import ConfigError
from rllm_envs.reasoning_gym import generators

WITHOUT_ANSWER = {
    "boxnet": None,
    "graph_color": "possible_answer",
    "propositional_logic": "example_answer",
    "rubiks_cube": "example_correct_answer",
    "rush_hour": None,
}
"""Generators that keep no answer -> where they keep an example of a right one."""
CONFIGS = {"composite": {"datasets": [{"name": "gcd", "weight": 1.0, "config": {}}]}}
JUNK = ("0", "nonsense", "[1, 2]", "{}", "[[1]]", "1/0", "\x00", "(" * 300)


@pytest.mark.long
@pytest.mark.parametrize("generator", sorted(DATASETS.keys() - WITHOUT_ANSWER.keys()))
def test_its_own_answer_is_right(generator: str, open_task: Callable[..., Any]) -> None:
    world, shown = open_task(generator, 3, config=CONFIGS.get(generator, {}))
    assert [message["role"] for message in shown] == ["user"]
    assert shown[0]["content"]
    outcome = world.step(world.final_state()["answer"])
    assert (outcome.done, outcome.correct, outcome.reward) == (True, True, 1.0)


@pytest.mark.long
@pytest.mark.parametrize("generator", sorted(DATASETS))
def test_any_answer_is_scored(generator: str, open_task: Callable[..., Any]) -> None:
    world, _ = open_task(generator, config=CONFIGS.get(generator, {}))
    for words in JUNK:
        outcome = world.step(words)
        assert outcome.done
        assert 0.0 <= outcome.reward <= 1.0
        assert outcome.correct == (outcome.reward == 1.0)


@pytest.mark.parametrize(("generator", "place"), [pair for pair in WITHOUT_ANSWER.items() if pair[1]])
def test_an_example_of_a_right_answer_is_right(generator: str, place: str) -> None:
    source = {"generator": generator, "config": {}, "seed": 0, "size": 8, "index": 1}
    example = generators.entry(source)["metadata"][place]
    words = example if isinstance(example, str) else json.dumps(example)
    score = generators.answered({"ask": "score", "source": source, "answer": words})
    assert score == 1.0, words


@pytest.mark.parametrize(
    ("failure", "code", "value"),
    [
        (ModuleNotFoundError("No module named 'cv2'", name="cv2"), "missing-package", "pip install cv2"),
        (ConnectionError("no route to host"), "generator-failed", "no route to host"),
    ],
)
def test_a_generator_that_needs_more_than_is_here_is_refused(
    failure: Exception, code: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise failure

    monkeypatch.setattr(DATASETS["aiw"][0], "__init__", refuse)
    asked = {"ask": "config", "generator": "aiw", "config": {}, "level": None, "curriculum": {}, "seed": 5, "size": 5}
    with expect_error(ConfigError, code, value):
        generators.answered(asked)
