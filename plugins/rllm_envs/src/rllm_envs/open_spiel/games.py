"""Load games of OpenSpiel, and turn states into text and text into actions."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyspiel

from rllm_core.contracts.environment import Split
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError, did_you_mean
from rllm_envs.hosted import WorkflowEnvironment
from rllm_envs.open_spiel.options import OpenSpielParams
from rllm_envs.tasks import make_seed_tasks

EXPLORATION = 2.0
MEMORY = 100
"""Constants of the bot `mcts`: its exploration constant, and its memory in MB."""


class OpenSpielGames(WorkflowEnvironment):
    """The games of a split, by seed. The workflow `open_spiel` plays them, because a game has several seats."""

    workflow = "open_spiel"

    @classmethod
    def tasks(cls, split: Split, params: OpenSpielParams) -> Sequence[Task]:
        """Return the games of a split, by seed."""
        return make_seed_tasks(split, params, params.game)


def load_game(params: OpenSpielParams) -> Any:
    """Return the game of the options. A game with simultaneous moves asks its seats in order, hidden from each other.

    Raises:
        ConfigError: there is no such game, it rejects its options, or it cannot be played here.
    """
    names = pyspiel.registered_names()
    if params.game not in names:
        raise ConfigError(
            "unknown-choice",
            f"rllm.env.env_args.game: OpenSpiel has no game {params.game!r}.",
            did_you_mean(params.game, names)
            or "List them: python -c 'import pyspiel; print(pyspiel.registered_names())'",
        )
    try:
        game = pyspiel.load_game(params.game, params.options)
        kind = game.get_type()
        if kind.dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS:
            game = pyspiel.convert_to_turn_based(game)
        lowest, players = game.min_utility(), game.num_players()
    except Exception as error:
        raise ConfigError(
            "environment-options-rejected",
            f"Game {params.game!r} rejects its options {params.options!r}: {type(error).__name__}: {error}.",
            "Change the named option in rllm.env.env_args.options, or remove that key.",
        ) from error
    if kind.dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD or not math.isfinite(lowest):
        raise _not_playable(params, "it is a mean-field game", "Choose a game with separate players.")
    if kind.chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC:
        raise _not_playable(params, "its chance events do not follow from a seed", "Choose a different game.")
    views = {
        "observation": kind.provides_observation_string,
        "information_state": kind.provides_information_state_string,
    }
    offered = [view for view, is_offered in views.items() if is_offered]
    if not offered or params.view not in (None, *offered):
        raise _not_playable(
            params,
            f"it has no text for the view {params.view or 'observation'!r}",
            f"Set rllm.env.env_args.view={offered[0]}." if offered else "Choose a different game.",
        )
    if wrong := sorted({seat for seat in params.seats if not 0 <= seat < players}):
        raise ConfigError(
            "unknown-choice",
            f"rllm.env.env_args.seats: {params.game!r} has no seat {', '.join(map(str, wrong))}.",
            f"Its seats: {', '.join(map(str, range(players)))}.",
        )
    if params.opponent == "mcts" and (
        kind.dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL
        or kind.information != pyspiel.GameType.Information.PERFECT_INFORMATION
        or kind.reward_model != pyspiel.GameType.RewardModel.TERMINAL
    ):
        raise ConfigError(
            "environment-options-rejected",
            f"rllm.env.env_args.opponent: the bot 'mcts' cannot play {params.game!r} fairly.",
            "Set rllm.env.env_args.opponent=random, because the bot sees hidden cards.",
        )
    return game


def make_bot(game: Any, params: OpenSpielParams, seed: int) -> Any:
    """Return the bot `mcts`, whose moves follow from `seed`."""
    evaluator = pyspiel.RandomRolloutEvaluator(1, seed)
    return pyspiel.MCTSBot(game, evaluator, EXPLORATION, params.mcts_simulations, MEMORY, False, seed, False)


def draw_chance(state: Any, numbers: random.Random) -> int:
    """Return an outcome of a chance node, by its probability."""
    actions, probabilities = zip(*state.chance_outcomes(), strict=True)
    drawn: int = numbers.choices(actions, probabilities)[0]
    return drawn


def write_view(state: Any, seat: int, params: OpenSpielParams) -> str:
    """Return the state as `seat` sees it."""
    kind = state.get_game().get_type()
    view = params.view or ("observation" if kind.provides_observation_string else "information_state")
    text: str = state.observation_string(seat) if view == "observation" else state.information_state_string(seat)
    return text.strip("\n")


def name_actions(state: Any, seat: int) -> dict[str, int]:
    """Return the legal actions of `seat` by their names in OpenSpiel. Equal names get the action's number."""
    named = [(" ".join(state.action_to_string(seat, action).split()), action) for action in state.legal_actions(seat)]
    count = Counter(name for name, _ in named)
    return {name if count[name] == 1 else f"{name} #{action}": action for name, action in named}


def read_action(text: str, names: Mapping[str, int]) -> int | None:
    """Return the last action that `text` contains by name, or None. Capital letters matter only between two names."""
    longest_first = sorted(names, key=len, reverse=True)
    found = re.findall(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)", text, re.IGNORECASE)
    if not found:
        return None
    same = {action for name, action in names.items() if name.casefold() == found[-1].casefold()}
    return names.get(found[-1], same.pop() if len(same) == 1 else None)


def share_forfeit(game: Any, state: Any, seat: int) -> list[float]:
    """Return the returns of all seats after `seat` forfeits: the game's lowest return for it.

    In games with a constant sum, the other seats share the rest equally. In other games they keep their returns so far.
    """
    returns, total = list(state.returns()), game.utility_sum()
    lowest = game.min_utility()
    if total is not None and len(returns) > 1:
        returns = [(total - lowest) / (len(returns) - 1)] * len(returns)
    returns[seat] = lowest
    return returns


def _not_playable(params: OpenSpielParams, reason: str, hint: str) -> ConfigError:
    return ConfigError("game-not-playable", f"Game {params.game!r} cannot be played through text: {reason}.", hint)
