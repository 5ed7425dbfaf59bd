"""The environment `openenv`, whose packages are imported only when a run needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rllm_core.contracts.environment import Environment, EnvironmentPlugin
from rllm_envs.installed import require
from rllm_envs.openenv.options import OpenEnvParams


def _openenv() -> Callable[[Any], Environment]:
    require("openenv", "openenv")
    from rllm_envs.openenv.environment import OpenEnv

    return OpenEnv


def _check(params: OpenEnvParams) -> None:
    require("openenv", "openenv")
    from rllm_envs.openenv.server import find_server

    find_server(params)


def environments() -> Iterable[EnvironmentPlugin[Any]]:
    yield EnvironmentPlugin(
        name="openenv",
        summary="Environments of OpenEnv, for example openenv:http://127.0.0.1:8000 or openenv:MODULE:APP.",
        params=OpenEnvParams,
        load=_openenv,
        check=_check,
        family_option="server",
        # A prompt contains all turns until then.
        defaults={
            "rllm.workflow.name": "multi_turn_workflow",
            "data.max_prompt_length": 8192,
            "data.max_response_length": 256,
        },
    )
