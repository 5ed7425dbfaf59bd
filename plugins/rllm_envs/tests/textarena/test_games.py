"""Real games of TextArena."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from typing import Any

import pytest
from expecting import expect_error

from rllm_core.contracts.environment import Outcome
from rllm_core.errors import ConfigError
from rllm_envs.seeds import SEEDS
from rllm_envs.textarena.environment import TextArena
from rllm_envs.textarena.games import check_game, single_player_games
from rllm_envs.textarena.options import TextArenaParams
from rllm_plugin_kit.process_state import find_changes

MOVES = ("[A1]", "[up]", "[1 2]", "[5]", "left", "[stand]", "[0 0]", "[A B]", "no idea")


PARTS = 6
"""Tests that share the games, which are listed only when a test runs."""


def _play(game: str, moves: Sequence[str], seed: int = 3, **options: Any) -> list[Any]:
    """What is seen and what is earned, move by move."""
    world = TextArena(TextArenaParams(game=game, options=options))
    seen: list[Any] = [world.reset({"game": game, "options": options, "seed": seed})]
    for move in moves:
        outcome = world.step(move)
        seen.append(outcome)
        if outcome.done:
            break
    return seen


def _play_three(game: str) -> list[Any]:
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(lambda seed: _play(game, MOVES, seed), (3, 4, 3)))


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_games_are_functions_of_seeds_and_moves(part: int) -> None:
    for game in single_player_games()[part::PARTS]:
        printed = io.StringIO()
        with redirect_stdout(printed):
            single = _play(game, MOVES)
            several: list[Any] = []
            different = find_changes(lambda several=several, game=game: several.extend(_play_three(game)))
        assert single == several[0] == several[2], game
        assert "Python's random numbers" not in different, f"{game}: nobody else's random numbers are touched"
        assert printed.getvalue() == "", game


@pytest.mark.parametrize("part", range(PARTS))
def test_meaningless_moves_end_games_with_a_number(part: int) -> None:
    for game in single_player_games()[part::PARTS]:
        *_, last = _play(game, ["nonsense"] * 400)
        assert isinstance(last, Outcome), game
        assert last.done, game
        assert -1.0 <= last.reward < 1.0, game
        assert not last.correct, game
        assert last.metrics["invalid"] == 1.0, game


def test_finding_the_number_is_correct() -> None:
    ends = [_play("GuessTheNumber-v0", [f"[{guess}]"])[-1] for guess in range(1, 21)]
    (last,) = [end for end in ends if end.done]
    assert (last.reward, last.correct) == (1.0, True)
    assert last.metrics == {"turns": 1.0, "invalid": 0.0}


def test_each_message_is_shown_once() -> None:
    rules, first, second = _play("GuessTheNumber-v0", ["[1]", "[20]"])[:3]
    assert "guess" in rules.lower()
    assert rules not in first.observation
    assert first.observation != second.observation
    assert "[1]" not in first.observation


def test_options_reach_the_game() -> None:
    rules, *_ = _play("GuessTheNumber-v0", [], max_number=7)
    assert "between 1 and 7" in rules


def test_tasks_are_seeds_and_splits_share_none() -> None:
    params = TextArenaParams(game="Mastermind-v0", train_size=3, val_size=2, seed=5)
    train, val = (TextArena.tasks(split, params) for split in ("train", "val"))
    assert [task.data["seed"] for task in train] == [5, 6, 7]
    assert [task.data["seed"] for task in val] == [SEEDS + 5, SEEDS + 6]
    assert train[0].data == {"game": "Mastermind-v0", "options": {}, "seed": 5}


@pytest.mark.parametrize(
    ("game", "options", "code", "value"),
    [
        ("GuessTheNumber", {}, "unknown-choice", "'GuessTheNumber-v0'"),
        ("GuessTheNumber-v0", {"max_numbr": 3}, "environment-options-rejected", "max_numbr"),
        ("Wordle-v0", {}, "game-not-playable", "NLTK"),
        ("TwentyQuestions-v0", {}, "game-not-playable", "OpenRouter"),
        ("Sokoban-v0", {}, "game-not-playable", "variables"),
        ("Klondike-v0", {}, "game-not-playable", "Python"),
        ("TicTacToe-v0", {}, "game-not-playable", "players"),
        ("UsedCar-v0-balanced", {}, "game-not-playable", "textarena"),
    ],
)
def test_unplayable_environment_is_rejected_before_a_run(
    game: str, options: dict[str, Any], code: str, value: str
) -> None:
    with expect_error(ConfigError, code, repr(game), value):
        check_game(TextArenaParams(game=game, options=options))
