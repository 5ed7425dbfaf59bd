"""Every generator of reasoning-gym makes entries, and pays for its own answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError

WITHOUT_ANSWER = {
    "boxnet": None,
    "graph_color": "possible_answer",
    "propositional_logic": "example_answer",
    "rubiks_cube": "example_correct_answer",
    "rush_hour": None,
}
"""Generators that keep no answer -> where they keep an example of a right one."""
CONFIGS = {"composite": {"datasets": [{"name": "gcd", "weight": 1.0, "config": {}}]}}
PARTS = 12
JUNK = ("0", "nonsense", "[1, 2]", "{}", "[[1]]", "1/0", "\x00", "(" * 300)


def _generators(part: int) -> list[str]:
    """Of this part. Only a test lists them, because the package takes seconds to import."""
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS)[part::PARTS]


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_own_answers_are_right_and_all_are_scored(part: int, open_task: Callable[..., Any]) -> None:
    for generator in _generators(part):
        world, shown = open_task(generator, 3, config=CONFIGS.get(generator, {}))
        assert [message["role"] for message in shown] == ["user"], generator
        assert shown[0]["content"], generator
        if generator not in WITHOUT_ANSWER:
            outcome = world.step(world.final_state()["answer"])
            assert (outcome.done, outcome.correct, outcome.reward) == (True, True, 1.0), generator
        for words in JUNK:
            outcome = world.step(words)
            assert outcome.done, generator
            assert 0.0 <= outcome.reward <= 1.0, generator
            assert outcome.correct == (outcome.reward == 1.0), generator


@pytest.mark.parametrize(("generator", "place"), [pair for pair in WITHOUT_ANSWER.items() if pair[1]])
def test_an_example_of_a_right_answer_is_right(generator: str, place: str) -> None:
    from rllm_envs.reasoning_gym import generators

    source = {"generator": generator, "config": {}, "seed": 0, "size": 8, "index": 1}
    example = generators.make_entry(source)["metadata"][place]
    words = example if isinstance(example, str) else json.dumps(example)
    score = generators.answer_question({"ask": "score", "source": source, "answer": words})
    assert score == 1.0, words


@pytest.mark.parametrize(
    ("failure", "code", "value"),
    [
        (ModuleNotFoundError("No module named 'cv2'", name="cv2"), "missing-package", "pip install cv2"),
        (ConnectionError("no route to host"), "generator-failed", "no route to host"),
    ],
)
def test_generator_with_missing_requirements_is_rejected(
    failure: Exception, code: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reasoning_gym.factory import DATASETS

    from rllm_envs.reasoning_gym import generators

    def refuse(*arguments: object, **options: object) -> None:
        raise failure

    monkeypatch.setattr(DATASETS["aiw"][0], "__init__", refuse)
    asked = {"ask": "config", "generator": "aiw", "config": {}, "level": None, "curriculum": {}, "seed": 5, "size": 5}
    with expect_error(ConfigError, code, value):
        generators.answer_question(asked)
