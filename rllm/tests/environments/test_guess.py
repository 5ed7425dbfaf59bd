"""`guess`: what it answers, what it pays, and what can be reached at best."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rllm.environments.guess import Guess
from rllm.environments.options import GuessParams
from rllm_core.contracts.environment import EnvironmentPlugin, Outcome


def _play(number: int, actions: list[str]) -> list[Outcome]:
    game = Guess(GuessParams())
    game.reset({"number": number})
    return [game.step(action) for action in actions]


@pytest.mark.parametrize("guesses", [1, 2, 3, 4, 5])
def test_a_hit_pays_one_less_a_tenth_for_every_guess_before_it(guesses: int) -> None:
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
def test_a_miss_is_answered_with_where_the_number_lies(number: int, guess: int) -> None:
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


def _binary_search(number: int) -> Outcome:
    game = Guess(GuessParams())
    game.reset({"number": number})
    low, high = 0, 15
    while True:
        guess = (low + high) // 2
        outcome = game.step(str(guess))
        if outcome.done:
            return outcome
        low, high = (low, guess - 1) if outcome.observation == "lower" else (guess + 1, high)


def test_binary_search_needs_3_375_guesses_on_average() -> None:
    outcomes = [_binary_search(number) for number in range(16)]
    assert all(outcome.correct for outcome in outcomes)
    assert sum(outcome.metrics["guesses"] for outcome in outcomes) / 16 == 3.375
    assert sum(outcome.reward for outcome in outcomes) / 16 == pytest.approx(0.7625)


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
