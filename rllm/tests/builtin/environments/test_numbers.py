"""Reading a number from words, and the environments `sum` and `guess`."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rllm.builtin.environments.number_games import Guess, GuessParams, Sum, SumParams, find_integer, parse_integer
from rllm_core.contracts.environment import EnvironmentPlugin, Outcome

space = st.text(" \n\t", max_size=3)
around = st.tuples(space, space, st.sampled_from(["", "."]), space)


@given(number=st.integers(0, 999_999_999), around=around)
def test_white_space_and_a_full_stop_are_ignored(number: int, around: tuple[str, str, str, str]) -> None:
    before, between, stop, after = around
    assert parse_integer(f"{before}{number}{between}{stop}{after}") == number


@pytest.mark.parametrize(
    ("words", "number"), [("007", 7), ("00", 0), (" 15 . ", 15), ("1" * 9, 111_111_111), ("1" * 10, None)]
)
def test_leading_zeros_do_not_matter(words: str, number: int | None) -> None:
    assert parse_integer(words) == number


@pytest.mark.parametrize(
    "words",
    ["", " ", ".", "seven", "-3", "+3", "3.5", "3,000", "1 2", "7!", "7..", "x7", "7x", "guess 7", "1e3", "1_000"],
)
def test_words_that_are_no_number_are_none(words: str) -> None:
    assert parse_integer(words) is None


@given(st.text(max_size=20) | st.just("9" * 100_000))
def test_any_words_have_a_number_or_none(words: str) -> None:
    for number in (parse_integer(words), find_integer(words)):
        assert number is None or 0 <= number < 10**9


@pytest.mark.parametrize(
    ("words", "number"),
    [("7", 7), ("answer 2, not 1", 2), ("-3.5", 3), ("x12y", 12), ("007", 7), ("", None), ("none", None), ("²", None)],
)
def test_the_first_digits_among_words_are_a_number(words: str, number: int | None) -> None:
    assert find_integer(words) == number


@given(a=st.integers(0, 500), b=st.integers(0, 500), wrong=st.integers(0, 2))
def test_only_the_exact_sum_is_paid(a: int, b: int, wrong: int) -> None:
    question = Sum(SumParams(largest=500))
    question.reset({"a": a, "b": b})
    outcome = question.step(str(a + b + wrong))
    assert (outcome.done, outcome.correct, outcome.reward) == (True, wrong == 0, float(wrong == 0))


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


def test_reward_parts_separate_wrong_from_missing_numbers() -> None:
    world = Sum(SumParams())
    for words, parts in (("5", (1, 1)), ("6", (0, 1)), ("five", (0, 0))):
        world.reset({"a": 2, "b": 3})
        found = world.step(words).reward_components
        assert (found["correct"], found["number"]) == parts


def _play(number: int, actions: list[str]) -> list[Outcome]:
    game = Guess(GuessParams())
    game.reset({"number": number})
    return [game.step(action) for action in actions]


@pytest.mark.parametrize("guesses", [1, 2, 3, 4, 5])
def test_each_earlier_guess_costs_a_tenth(guesses: int) -> None:
    *misses, hit = _play(7, [*["0"] * (guesses - 1), "7"])
    assert hit.done
    assert hit.correct
    assert hit.reward == pytest.approx(1.0 - 0.1 * (guesses - 1))
    assert hit.metrics == {"guesses": guesses}
    for miss in misses:
        assert (miss.reward, miss.done, miss.correct, miss.metrics) == (0.0, False, None, {})


def test_five_misses_end_the_game_without_reward() -> None:
    *others, last = _play(7, ["1", "2", "3", "4", "5"])
    assert (last.reward, last.done, last.correct, last.metrics) == (0.0, True, False, {"guesses": 5})
    assert not any(outcome.done for outcome in others)


@given(number=st.integers(0, 15), guess=st.integers(0, 40))
def test_wrong_guess_is_answered_lower_or_higher(number: int, guess: int) -> None:
    (outcome,) = _play(number, [str(guess)])
    assert outcome.done == (number == guess)
    if not outcome.done:
        assert outcome.observation == ("lower" if number < guess else "higher")


@pytest.mark.parametrize("words", ["", "7.5"])
def test_words_without_a_number_cost_a_guess(words: str) -> None:
    first, hit = _play(7, [words, "7"])
    assert (first.observation, first.reward, first.done) == ("?", 0.0, False)
    assert hit.reward == pytest.approx(0.9)
    assert _play(7, ["1", "2", "3", "4", words])[-1].done


def test_each_episode_counts_its_own_guesses() -> None:
    assert Guess(GuessParams(prompt="guess")).reset({"number": 3}) == "guess"
    _play(3, ["1"] * 4)
    assert not _play(3, ["1"])[0].done


@cache
def _best(numbers: int, guesses_made: int) -> float:
    """Largest sum of rewards over `numbers` neighboring numbers, any of which it may be."""
    if numbers == 0 or guesses_made == 5:
        return 0.0
    return max(
        1.0 - 0.1 * guesses_made + _best(below, guesses_made + 1) + _best(numbers - 1 - below, guesses_made + 1)
        for below in range(numbers)
    )


@cache
def _fewest(numbers: int) -> int:
    """Smallest sum of guesses over `numbers` neighboring numbers."""
    if numbers == 0:
        return 0
    return numbers + min(_fewest(below) + _fewest(numbers - 1 - below) for below in range(numbers))


def test_the_record_states_what_the_best_player_reaches(records: dict[str, EnvironmentPlugin[Any]]) -> None:
    stated = records["guess"].best_possible
    assert stated["reward"] == pytest.approx(_best(16, 0) / 16)
    assert stated["guesses"] == pytest.approx(_fewest(16) / 16)
    assert set(stated) == {"reward", "guesses"}


@pytest.mark.parametrize("split", ["train", "val"])
def test_there_is_one_task_for_each_number(split: Any) -> None:
    tasks = Guess.tasks(split, GuessParams())
    assert [task.data["number"] for task in tasks] == list(range(16))
    assert len({task.id for task in tasks}) == 16
    assert {task.data_source for task in tasks} == {"guess"}
    assert Guess.tasks(split, GuessParams()) == tasks
