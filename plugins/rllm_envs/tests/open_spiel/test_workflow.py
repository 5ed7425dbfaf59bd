"""Games of OpenSpiel with a scripted model, compared with OpenSpiel's own play of the same moves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyspiel
import pytest
from expecting import expect_error
from rollout_context import context_of
from scripted_world import STOP, Tokenizer

from rllm_core.algorithms.columns import REWARD_ERROR
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.data.types import Episode, TerminationReason
from rllm_core.errors import BackendError, ConfigError, RolloutError
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_envs.open_spiel import games
from rllm_envs.open_spiel.games import OpenSpielGames, load_game, read_action
from rllm_envs.open_spiel.options import OpenSpielParams
from rllm_envs.open_spiel.workflow import UNTRAINED, OpenSpielWorkflow
from rllm_envs.seeds import SEEDS

Answer = Callable[[str, str], str]


class Model:
    """Answers with `answer(last message, session)`."""

    max_context = 20_000

    def __init__(self, answer: Answer) -> None:
        self.renderer = TemplateRenderer(Tokenizer(), [STOP])
        self.sampled: dict[str, list[int]] = {}
        self.ended: set[str] = set()
        self._answer = answer

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        prompt = "".join(map(chr, prompt_ids)).rpartition("<u>")[2]
        tokens = [*map(ord, self._answer(prompt, session)), STOP]
        seat = session.partition("#")[0].rpartition("/")[2]
        self.sampled.setdefault(seat, []).extend(tokens)
        return Completion(
            token_ids=np.array(tokens, np.int32),
            logprobs=np.full(len(tokens), -0.5, np.float32),
            finish_reason="stop",
            weight_version=0,
        )

    async def end_session(self, session: str) -> None:
        self.ended.add(session)


def _play(answer: Answer, seed: int = 3, max_steps: int = 20, **params: Any) -> tuple[Episode, Model]:
    model = Model(answer)
    environment = OpenSpielGames(OpenSpielParams(**params))
    context = context_of(model, max_prompt_length=20_000, max_steps=max_steps, make_environment=lambda: environment)
    return asyncio.run(OpenSpielWorkflow(context).run({"seed": seed}, "game-3:0")), model


def _last_legal(prompt: str, session: str) -> str:
    return f"I choose {_legal(prompt)[-1]}"


def _legal(prompt: str) -> Sequence[str]:
    found = re.search(r"Legal actions: (.*)\n", prompt)
    assert found
    return found[1].split(", ")


def _tokens(episode: Episode) -> dict[str, list[int]]:
    return {
        each.name: [int(token) for step in each.steps for token in step.response_ids] for each in episode.trajectories
    }


def test_self_play_gives_returns_of_open_spiel() -> None:
    """The same moves, made in OpenSpiel itself, have the same returns."""
    episode, model = _play(_last_legal, game="tic_tac_toe", seats=[0, 1])

    state = pyspiel.load_game("tic_tac_toe").new_initial_state()
    while not state.is_terminal():
        state.apply_action(state.legal_actions()[-1])
    rewards = {each.name: each.reward for each in episode.trajectories}
    assert rewards == {"player_0": state.returns()[0], "player_1": state.returns()[1]}
    assert [sum(step.reward for step in each.steps) for each in episode.trajectories] == list(rewards.values())
    assert episode.termination_reason is TerminationReason.ENV_DONE
    assert len(model.ended) == 2


def test_trained_tokens_are_sampled_tokens_once() -> None:
    episode, model = _play(_last_legal, game="tic_tac_toe", seats=[0, 1])

    assert _tokens(episode) == model.sampled
    assert all(each.tokens is not None for each in episode.trajectories)


def test_policy_as_opponent_is_never_trained() -> None:
    episode, model = _play(_last_legal, game="kuhn_poker", options={"players": 3}, seats=[1], opponent="policy")

    assert set(model.sampled) == {"player_0", "player_1", "player_2"}
    assert _tokens(episode) == {"player_1": model.sampled["player_1"]}
    assert episode.metrics[UNTRAINED] == len(model.sampled["player_0"]) + len(model.sampled["player_2"])


@pytest.mark.parametrize("opponent", ["random", "mcts"])
def test_game_depends_on_seed_and_moves(opponent: str) -> None:
    def seen_prompts(seed: int) -> list[str]:
        seen: list[str] = []
        _play(
            lambda prompt, session: (seen.append(prompt), _legal(prompt)[0])[1],
            seed,
            game="tic_tac_toe",
            seats=[1],
            opponent=opponent,
        )
        return seen

    runs = [seen_prompts(seed) for seed in (3, 3, 4, 5, 6)]
    assert runs[0] == runs[1]
    assert any(run != runs[0] for run in runs[2:])


def test_mcts_beats_first_legal_moves() -> None:
    """A search that looks for wins does not lose against a player without a plan."""
    episode, _ = _play(
        lambda prompt, session: _legal(prompt)[0], game="tic_tac_toe", opponent="mcts", mcts_simulations=500
    )

    assert episode.trajectories[0].reward in (-1.0, 0.0)


def test_forfeit_gives_lowest_return_and_shares_the_rest() -> None:
    def answer(prompt: str, session: str) -> str:
        return "no idea" if "player_1" in session else _legal(prompt)[0]

    episode, _ = _play(answer, game="kuhn_poker", seats=[0, 1])

    assert {each.name: each.reward for each in episode.trajectories} == {"player_0": 2.0, "player_1": -2.0}
    assert episode.metrics["invalid"] == 2.0


def test_one_invalid_response_costs_a_retry_only() -> None:
    answers = iter(["x(9,9)"])
    episode, _ = _play(lambda prompt, session: next(answers, _legal(prompt)[-1]), game="tic_tac_toe")

    assert episode.metrics["invalid"] == 1.0
    assert episode.trajectories[0].steps[0].text == "x(9,9)"
    assert episode.trajectories[0].reward is not None


def test_invalid_random_plays_to_the_end() -> None:
    episode, _ = _play(lambda prompt, session: "?", game="tic_tac_toe", seats=[0, 1], retries=0, invalid="random")

    assert episode.metrics["invalid"] == episode.metrics["turns"] >= 5
    assert sum(each.reward or 0.0 for each in episode.trajectories) == 0.0


def test_turn_limit_ends_game_with_returns_so_far() -> None:
    episode, _ = _play(_last_legal, max_steps=1, game="tic_tac_toe")

    assert episode.termination_reason is TerminationReason.MAX_TURNS_EXCEEDED
    assert episode.trajectories[0].reward == 0.0


def test_simultaneous_moves_stay_hidden() -> None:
    prompts: dict[str, str] = {}

    def answer(prompt: str, session: str) -> str:
        prompts.setdefault(session.partition("#")[0], prompt)
        return _legal(prompt)[1]

    episode, _ = _play(answer, game="matrix_pd", seats=[0, 1])

    bare = pyspiel.load_game("matrix_pd").new_initial_state()
    bare.apply_actions([1, 1])
    assert [each.reward for each in episode.trajectories] == bare.returns()
    first, second = (prompt.partition("\n")[2] for prompt in prompts.values())
    assert first.count("Defect") == second.count("Defect")


def test_failed_game_has_no_reward_and_a_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSpiel raises an error if a player moves to a square that is taken."""
    monkeypatch.setattr("rllm_envs.open_spiel.workflow.read_action", lambda text, names: 0)

    episode, _ = _play(_last_legal, game="tic_tac_toe", seats=[0, 1])

    for trajectory in episode.trajectories:
        assert trajectory.reward is None
        assert [step.reward for step in trajectory.steps] == [None]
        assert "SpielError" in trajectory.info[REWARD_ERROR]
    assert len(episode.trajectories) == 2
    assert not episode.is_correct


def test_failed_game_without_a_turn_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(state: Any, numbers: Any) -> int:
        raise pyspiel.SpielError("no cards")

    monkeypatch.setattr("rllm_envs.open_spiel.workflow.draw_chance", fail)

    with expect_error(RolloutError, "environment-failed", "no cards"):
        _play(_last_legal, game="kuhn_poker")


def test_failed_model_is_an_error_of_the_model() -> None:
    def answer(prompt: str, session: str) -> str:
        raise BackendError("engine-dead", "The engine is dead.", "")

    with expect_error(BackendError, "engine-dead"):
        _play(answer, game="kuhn_poker")


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("x(0,1)", 1),
        ("not X(0,0) but X(0,1).", 1),
        ("x(0,1)2", None),
        ("pass", 7),
        ("Bb4", 4),
        ("bb4", 5),
        ("BB4", None),
        ("30", 10),
        ("", None),
    ],
)
def test_last_legal_name_is_the_action(text: str, action: int | None) -> None:
    names = {"x(0,0)": 0, "x(0,1)": 1, "Pass": 7, "Bb4": 4, "bb4": 5, "3": 2, "30": 10}

    assert read_action(text, names) == action


def test_equal_names_of_actions_get_numbers() -> None:
    class State:
        def legal_actions(self, seat: int) -> list[int]:
            return [3, 5, 6]

        def action_to_string(self, seat: int, action: int) -> str:
            return "Stop" if action == 6 else "Go  on"

    assert games.name_actions(State(), 0) == {"Go on #3": 3, "Go on #5": 5, "Stop": 6}


def test_tasks_are_seeds_and_splits_are_separate() -> None:
    params = OpenSpielParams(game="tic_tac_toe", train_size=2, val_size=1, seed=5)

    assert [task.data["seed"] for task in OpenSpielGames.tasks("train", params)] == [5, 6]
    assert [task.data["seed"] for task in OpenSpielGames.tasks("val", params)] == [SEEDS + 5]


@pytest.mark.parametrize(
    ("params", "code", "value"),
    [
        ({"game": "tic_tac_to"}, "unknown-choice", "tic_tac_toe"),
        ({"game": "kuhn_poker", "options": {"players": 99}}, "environment-options-rejected", "players"),
        ({"game": "kuhn_poker", "seats": [0, 2]}, "unknown-choice", "2"),
        ({"game": "kuhn_poker", "opponent": "mcts"}, "environment-options-rejected", "mcts"),
        ({"game": "mfg_garnet"}, "game-not-playable", "mfg_garnet"),
        ({"game": "tarok"}, "game-not-playable", "tarok"),
        ({"game": "laser_tag", "view": "information_state"}, "game-not-playable", "information_state"),
    ],
)
def test_unplayable_options_are_rejected(params: dict[str, Any], code: str, value: str) -> None:
    with expect_error(ConfigError, code, value):
        load_game(OpenSpielParams(**params))
