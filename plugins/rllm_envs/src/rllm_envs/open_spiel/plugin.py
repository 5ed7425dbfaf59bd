"""The environment and the workflow `open_spiel`, with options. Its packages are imported only if a run needs them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.workflow import WorkflowPlugin
from rllm_envs.extra import Extra
from rllm_envs.hosted import read_params
from rllm_envs.seeds import SeedParams

if TYPE_CHECKING:
    from rllm_core.schema.run_config import RunConfig


NAME = "open_spiel"
_EXTRA = Extra("open-spiel", ("pyspiel",))


class OpenSpielParams(SeedParams):
    """Options of ``open_spiel``: the game, its seats and their players, and the tasks."""

    game: str = Field(min_length=1, description="Name of the game in OpenSpiel, such as tic_tac_toe or kuhn_poker.")
    options: dict[str, Any] = Field(
        default_factory=dict, description="Parameters of the game, such as {players: 3}. `rllm` passes them on."
    )
    seats: list[int] = Field(
        [0],
        min_length=1,
        description="Seats that the policy plays, from 0. Each is a trajectory with the role player_0, player_1, ….",
    )
    opponent: Literal["random", "mcts", "policy"] = Field(
        "random",
        description="Player of the other seats. `mcts` is OpenSpiel's bot. `policy` is the model itself, whose tokens "
        "in these seats are not trained.",
    )
    mcts_simulations: int = Field(100, gt=0, description="Simulations for each move of the bot `mcts`.")
    view: Literal["observation", "information_state"] | None = Field(
        None,
        description="The player's view as text: the current observation, or all that the player has seen so far. By "
        "default the observation, if the game has one.",
    )
    prompt: str | None = Field(
        None, min_length=1, description="First lines of a seat's first message. The default has the game and the seat."
    )
    retries: int = Field(
        1, ge=0, description="Number of further responses in a turn if a response contains no legal action."
    )
    invalid: Literal["forfeit", "random"] = Field(
        "forfeit",
        description="Outcome of a turn without a legal action after all retries. `forfeit` ends the game, and the seat "
        "gets the game's lowest return. `random` plays a random action.",
    )


def environments() -> Iterable[EnvironmentPlugin[Any]]:
    yield EnvironmentPlugin(
        name=NAME,
        summary="Games of OpenSpiel with several seats, for example open_spiel:tic_tac_toe.",
        params=OpenSpielParams,
        load=_EXTRA.load_from("rllm_envs.open_spiel.games", "OpenSpielGames"),
        check=_EXTRA.call_lazily("rllm_envs.open_spiel.games", "load_game"),
        family_option="game",
        # A prompt contains all turns until then.
        defaults={"rllm.workflow.name": NAME, "data.max_prompt_length": 8192, "data.max_response_length": 64},
    )


def _check_run(config: RunConfig, params: NoParams) -> None:
    read_params(config, NAME, OpenSpielParams, "game")


def workflows() -> Iterable[WorkflowPlugin[Any]]:
    yield WorkflowPlugin(
        name=NAME,
        summary="Plays games of OpenSpiel, one trajectory per seat. The environment `open_spiel` sets it.",
        load=_EXTRA.load_from("rllm_envs.open_spiel.workflow", "OpenSpielWorkflow"),
        check_run=_check_run,
        needs_environment=True,
        gives_rewards=True,
        config_keys=frozenset({"rllm.agent.max_steps", "rllm.accumulate_reasoning"}),
    )
