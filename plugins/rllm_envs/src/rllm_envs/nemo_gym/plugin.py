"""The environment `nemo_gym`, whose packages are imported only when a run needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rllm_core.contracts.environment import Environment, EnvironmentPlugin
from rllm_envs.installed import require
from rllm_envs.nemo_gym.options import NemoGymParams


def _nemo_gym() -> Callable[[Any], Environment]:
    require("httpx", "nemo-gym")
    from rllm_envs.nemo_gym.environment import NemoGym

    return NemoGym


def _check(params: NemoGymParams) -> None:
    require("httpx", "nemo-gym")
    from rllm_envs.nemo_gym.environment import check_server

    check_server(params)


def _check_task(params: NemoGymParams, task: Mapping[str, Any]) -> None:
    require("httpx", "nemo-gym")
    from rllm_envs.nemo_gym.rows import check_row

    check_row(task)


def environments() -> Iterable[EnvironmentPlugin[Any]]:
    yield EnvironmentPlugin(
        name="nemo_gym",
        summary="Resources servers of NeMo-Gym, for example nemo_gym:http://127.0.0.1:8000.",
        params=NemoGymParams,
        load=_nemo_gym,
        check=_check,
        check_task=_check_task,
        family_option="url",
        # A prompt contains the tools and all turns until then.
        defaults={
            "rllm.workflow.name": "tool_calling",
            "data.max_prompt_length": 8192,
            "data.max_response_length": 1024,
        },
    )
