"""Options of the environment `open_spiel`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from rllm_core.contracts.params import NoParams
from rllm_envs.hosted import read_params
from rllm_envs.seeds import SeedParams

if TYPE_CHECKING:
    from rllm_core.schema.run_config import RunConfig


NAME = "open_spiel"


class OpenSpielParams(SeedParams):
    """Options of ``open_spiel``: the game, its seats and their players, and the tasks."""

    game: str = Field(min_length=1)
    """Name of the game in OpenSpiel, such as tic_tac_toe or kuhn_poker."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the game, such as {players: 3}."""
    seats: list[int] = Field([0], min_length=1)
    """Seats that the policy plays, from 0. Each is a trajectory with the role player_0, player_1, …."""
    opponent: Literal["random", "mcts", "policy"] = "random"
    """Player of the other seats. `mcts` is OpenSpiel's bot. `policy` is the model itself, whose tokens in these seats
    are not trained."""
    mcts_simulations: int = Field(100, gt=0)
    """Simulations for each move of the bot `mcts`."""
    view: Literal["observation", "information_state"] | None = None
    """The player's view as text: the current observation, or all that the player has seen so far. By default the
    observation, if the game has one."""
    prompt: str | None = Field(None, min_length=1)
    """First lines of a seat's first message. The default has the game and the seat."""
    retries: int = Field(1, ge=0)
    """Number of further responses in a turn if a response contains no legal action."""
    invalid: Literal["forfeit", "random"] = "forfeit"
    """Outcome of a turn without a legal action after all retries. `forfeit` ends the game, and the seat gets the game's
    lowest return. `random` plays a random action."""


def check_run(config: RunConfig, params: NoParams) -> None:
    """Check a run with the workflow `open_spiel`: its environment and the environment's options.

    Raises:
        ConfigError: the run has a different environment.
    """
    read_params(config, NAME, OpenSpielParams, "game")
