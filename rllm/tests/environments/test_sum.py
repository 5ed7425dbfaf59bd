"""`sum`: one question, one answer, exact match."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from rllm.environments.options import SumParams
from rllm.environments.sum import Sum


@given(a=st.integers(0, 500), b=st.integers(0, 500), answer=st.integers(0, 1000))
def test_only_the_exact_sum_is_paid(a: int, b: int, answer: int) -> None:
    question = Sum(SumParams(largest=500))
    question.reset({"a": a, "b": b})
    outcome = question.step(str(answer))
    assert outcome.done
    assert outcome.correct == (answer == a + b)
    assert outcome.reward == (1.0 if answer == a + b else 0.0)


@pytest.mark.parametrize("words", ["", "5 + 6", "-11"])
def test_words_that_are_no_number_are_wrong(words: str) -> None:
    question = Sum(SumParams())
    question.reset({"a": 5, "b": 6})
    outcome = question.step(words)
    assert (outcome.done, outcome.correct, outcome.reward) == (True, False, 0.0)


@pytest.mark.parametrize(
    ("prompt", "said"), [("{a}+{b}", "12+3"), ("{b} and {a}: {sum}", "3 and 12: {sum}"), ("?", "?")]
)
def test_the_question_names_the_numbers(prompt: str, said: str) -> None:
    assert Sum(SumParams(prompt=prompt)).reset({"a": 12, "b": 3}) == said


@pytest.mark.parametrize("largest", [1, 9])
@pytest.mark.parametrize("split", ["train", "val"])
def test_there_is_one_task_for_each_pair(largest: int, split: Any) -> None:
    tasks = Sum.tasks(split, SumParams(largest=largest))
    assert len({(task.data["a"], task.data["b"]) for task in tasks}) == (largest + 1) ** 2
    assert len({task.id for task in tasks}) == len(tasks) == (largest + 1) ** 2
    assert all(0 <= task.data[name] <= largest for task in tasks for name in "ab")
    assert Sum.tasks(split, SumParams(largest=largest)) == tasks


def test_the_parts_of_the_reward_tell_a_wrong_number_from_no_number() -> None:
    world = Sum(SumParams())
    for words, parts in (("5", (1, 1)), ("6", (0, 1)), ("five", (0, 0))):
        world.reset({"a": 2, "b": 3})
        found = world.step(words).reward_components
        assert (found["correct"], found["number"]) == parts
