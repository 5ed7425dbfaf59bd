"""The environment and the workflow `open_spiel`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rllm_core.contracts.environment import Environment, EnvironmentPlugin
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.workflow import Workflow, WorkflowPlugin
from rllm_envs.hosted import read_params
from rllm_envs.installed import require
from rllm_envs.open_spiel.options import OpenSpielParams

if TYPE_CHECKING:
    from rllm_core.schema.run_config import RunConfig

NAME = "open_spiel"


def _environment() -> Callable[[Any], Environment]:
    require("pyspiel", "open-spiel")
    from rllm_envs.open_spiel.games import OpenSpielGames

    return OpenSpielGames


def _check(params: OpenSpielParams) -> None:
    require("pyspiel", "open-spiel")
    from rllm_envs.open_spiel.games import load_game

    load_game(params)


def environments() -> Iterable[EnvironmentPlugin[Any]]:
    yield EnvironmentPlugin(
        name=NAME,
        summary="Games of OpenSpiel with several seats, for example open_spiel:tic_tac_toe.",
        params=OpenSpielParams,
        load=_environment,
        check=_check,
        family_option="game",
        # A prompt contains all turns until then.
        defaults={"rllm.workflow.name": NAME, "data.max_prompt_length": 8192, "data.max_response_length": 64},
    )


def _workflow() -> Callable[..., Workflow]:
    require("pyspiel", "open-spiel")
    from rllm_envs.open_spiel.workflow import OpenSpielWorkflow

    return OpenSpielWorkflow


def _check_run(config: RunConfig, params: NoParams) -> None:
    read_params(config, NAME, OpenSpielParams, "game")


def workflows() -> Iterable[WorkflowPlugin[Any]]:
    yield WorkflowPlugin(
        name=NAME,
        summary="Plays games of OpenSpiel, one trajectory per seat. The environment `open_spiel` sets it.",
        load=_workflow,
        check_run=_check_run,
        needs_environment=True,
        gives_rewards=True,
        config_keys=frozenset({"rllm.agent.max_steps", "rllm.accumulate_reasoning"}),
    )
