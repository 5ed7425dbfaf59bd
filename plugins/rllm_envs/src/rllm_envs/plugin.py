"""Plugin specs of other projects' environments, and the extra of rllm-envs that installs each project's packages.

The packages are imported only if a run needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_core.contracts.workflow import WorkflowPlugin
from rllm_core.errors import PluginError
from rllm_core.lazy import call_lazily, load_from
from rllm_core.plugins import hookimpl
from rllm_envs.hosted import SESSION_KEYS


@dataclass(frozen=True)
class Extra:
    """An extra, and the modules that it installs. Our modules that use them are imported when a run needs them."""

    name: str
    modules: tuple[str, ...]

    def load_from(self, module: str, name: str) -> Callable[[], Any]:
        """Return a function that imports `module` and returns `name` from it. Use it as the `load` of a plugin."""
        return lambda: self._import(module, name)

    def call_lazily(self, module: str, name: str) -> Callable[..., Any]:
        """Return a function that imports `module` and calls its function `name`. Use it for the checks of a plugin."""
        return lambda *arguments: self._import(module, name)(*arguments)

    def check_installed(self) -> None:
        """Raise PluginError with the pip command if a module of the extra is not installed."""
        for module in self.modules:
            if find_spec(module) is None:
                raise PluginError(
                    "missing-package",
                    f"This environment needs the module {module}, which is not installed. "
                    f"Extra of rllm-envs: {self.name}.",
                    f"Run: pip install 'rllm-envs[{self.name}]'",
                )

    def _import(self, module: str, name: str) -> Any:
        self.check_installed()
        return getattr(import_module(module), name)


requires_api = 1

GYMNASIUM = Extra("gymnasium", ("gymnasium",))
INSPECT = Extra("inspect", ("inspect_ai", "openai", "rllm_gateway"))
NEMO_GYM = Extra("nemo-gym", ("httpx",))
OPEN_SPIEL = Extra("open-spiel", ("pyspiel",))
OPENENV = Extra("openenv", ("openenv",))
REASONING_GYM = Extra("reasoning-gym", ("reasoning_gym",))
TEXTARENA = Extra("textarena", ("textarena",))
VERIFIERS = Extra("verifiers", ("verifiers", "rllm_gateway"))


@hookimpl
def rllm_environments() -> Iterator[EnvironmentPlugin[Any]]:
    yield EnvironmentPlugin(
        name="gymnasium",
        summary="Environments of Gymnasium as text, for example gymnasium:FrozenLake-v1.",
        load_params=load_from("rllm_envs.gymnasium.options", "GymnasiumParams"),
        load=GYMNASIUM.load_from("rllm_envs.gymnasium.environment", "Gymnasium"),
        check=GYMNASIUM.call_lazily("rllm_envs.gymnasium.environment", "check_environment"),
        family_option="id",
        # An environment may simulate for long between two turns.
        blocking=True,
        # A prompt contains all turns until then.
        defaults={
            "rllm.workflow.name": "multi_turn_workflow",
            "data.max_prompt_length": 8192,
            "data.max_response_length": 64,
        },
    )
    yield EnvironmentPlugin(
        name="inspect",
        summary="Tasks of inspect-ai, for example inspect:inspect_evals/gsm8k or inspect:FILE.py@NAME.",
        load_params=load_from("rllm_envs.inspect.options", "InspectParams"),
        load=INSPECT.load_from("rllm_envs.inspect.loading", "InspectTasks"),
        check=INSPECT.call_lazily("rllm_envs.inspect.loading", "check_task"),
        sources=call_lazily("rllm_envs.inspect.options", "read_sources"),
        family_option="task",
        # A prompt contains all earlier turns.
        defaults={"rllm.workflow.name": "inspect", "data.max_prompt_length": 8192, "data.max_response_length": 1024},
    )
    yield EnvironmentPlugin(
        name="nemo_gym",
        summary="Resources servers of NeMo-Gym, for example nemo_gym:http://127.0.0.1:8000.",
        load_params=load_from("rllm_envs.nemo_gym.options", "NemoGymParams"),
        load=NEMO_GYM.load_from("rllm_envs.nemo_gym.environment", "NemoGym"),
        check=NEMO_GYM.call_lazily("rllm_envs.nemo_gym.environment", "check_server"),
        check_task=NEMO_GYM.call_lazily("rllm_envs.nemo_gym.environment", "check_row"),
        family_option="url",
        # A prompt contains the tools and all turns until then.
        defaults={
            "rllm.workflow.name": "tool_calling",
            "data.max_prompt_length": 8192,
            "data.max_response_length": 1024,
        },
    )
    yield EnvironmentPlugin(
        name="open_spiel",
        summary="Games of OpenSpiel with several seats, for example open_spiel:tic_tac_toe.",
        load_params=load_from("rllm_envs.open_spiel.options", "OpenSpielParams"),
        load=OPEN_SPIEL.load_from("rllm_envs.open_spiel.games", "OpenSpielGames"),
        check=OPEN_SPIEL.call_lazily("rllm_envs.open_spiel.games", "load_game"),
        family_option="game",
        # A prompt contains all turns until then.
        defaults={"rllm.workflow.name": "open_spiel", "data.max_prompt_length": 8192, "data.max_response_length": 64},
    )
    yield EnvironmentPlugin(
        name="openenv",
        summary="Environments of OpenEnv, for example openenv:http://127.0.0.1:8000 or openenv:MODULE:APP.",
        load_params=load_from("rllm_envs.openenv.options", "OpenEnvParams"),
        load=OPENENV.load_from("rllm_envs.openenv.environment", "OpenEnv"),
        check=OPENENV.call_lazily("rllm_envs.openenv.server", "find_server"),
        family_option="server",
        # A prompt contains all turns until then.
        defaults={
            "rllm.workflow.name": "multi_turn_workflow",
            "data.max_prompt_length": 8192,
            "data.max_response_length": 256,
        },
    )
    yield EnvironmentPlugin(
        name="reasoning_gym",
        summary="Questions of a generator of reasoning-gym: reasoning_gym:chain_sum, and a hundred others.",
        load_params=load_from("rllm_envs.reasoning_gym.options", "ReasoningGymParams"),
        load=REASONING_GYM.load_from("rllm_envs.reasoning_gym.environment", "ReasoningGym"),
        check=REASONING_GYM.call_lazily("rllm_envs.reasoning_gym.processes", "check"),
        family_option="generator",
        # A worker is a process: reset and step wait for it.
        blocking=True,
        best_possible={"reward": 1.0},
        defaults={"rllm.workflow.name": "single_turn_workflow", "data.max_response_length": 512},
    )
    yield EnvironmentPlugin(
        name="textarena",
        summary="TextArena's single-player games, for example textarena:GuessTheNumber-v0.",
        load_params=load_from("rllm_envs.textarena.options", "TextArenaParams"),
        load=TEXTARENA.load_from("rllm_envs.textarena.environment", "TextArena"),
        check=TEXTARENA.call_lazily("rllm_envs.textarena.games", "check_game"),
        family_option="game",
        # Some games search for seconds before their first turn.
        blocking=True,
        # A prompt contains all turns until then, many with a board.
        defaults={
            "rllm.workflow.name": "multi_turn_workflow",
            "data.max_prompt_length": 8192,
            "data.max_response_length": 256,
        },
    )
    yield EnvironmentPlugin(
        name="verifiers",
        summary="Environments of verifiers (v1), for example verifiers:gsm8k-v1.",
        load_params=load_from("rllm_envs.verifiers.options", "VerifiersParams"),
        load=VERIFIERS.load_from("rllm_envs.verifiers.tasks", "VerifiersTasks"),
        check=VERIFIERS.call_lazily("rllm_envs.verifiers.loading", "check_environment"),
        family_option="id",
        # A prompt contains all turns until then.
        defaults={"rllm.workflow.name": "verifiers", "data.max_prompt_length": 8192, "data.max_response_length": 1024},
    )


@hookimpl
def rllm_workflows() -> Iterator[WorkflowPlugin[Any]]:
    yield WorkflowPlugin(
        name="inspect",
        summary="Runs samples of inspect-ai. The environment `inspect` sets it.",
        load=INSPECT.load_from("rllm_envs.inspect.workflow", "InspectWorkflow"),
        check_run=INSPECT.call_lazily("rllm_envs.inspect.options", "check_run"),
        open=INSPECT.call_lazily("rllm_envs.inspect.running", "open_run"),
        needs_environment=True,
        gives_rewards=True,
        renders_elsewhere=True,
        config_keys=SESSION_KEYS,
    )
    yield WorkflowPlugin(
        name="open_spiel",
        summary="Plays games of OpenSpiel, one trajectory per seat. The environment `open_spiel` sets it.",
        load=OPEN_SPIEL.load_from("rllm_envs.open_spiel.workflow", "OpenSpielWorkflow"),
        check_run=call_lazily("rllm_envs.open_spiel.options", "check_run"),
        needs_environment=True,
        gives_rewards=True,
        config_keys=frozenset({"rllm.agent.max_steps", "rllm.accumulate_reasoning"}),
    )
    yield WorkflowPlugin(
        name="verifiers",
        summary="Runs episodes of verifiers. The environment `verifiers` sets it.",
        load=VERIFIERS.load_from("rllm_envs.verifiers.workflow", "VerifiersWorkflow"),
        check_run=VERIFIERS.call_lazily("rllm_envs.verifiers.options", "check_run"),
        open=VERIFIERS.call_lazily("rllm_envs.verifiers.opening", "open_run"),
        needs_environment=True,
        gives_rewards=True,
        renders_elsewhere=True,
        config_keys=SESSION_KEYS,
    )
