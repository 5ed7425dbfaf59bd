"""The environment `nemo_gym`, with options. Its packages are imported only if a run needs them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field

from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_core.contracts.plugin import Params
from rllm_envs.extra import Extra

_EXTRA = Extra("nemo-gym", ("httpx",))


class NemoGymParams(Params):
    """Options of ``nemo_gym``: the resources server's address and its time limit."""

    url: str = Field(
        pattern=r"^https?://[^/]+", description="Address of a running resources server, such as http://127.0.0.1:8000."
    )
    timeout: float = Field(600.0, gt=0, description="Maximum number of seconds for one request to the server.")


def environments() -> Iterable[EnvironmentPlugin[Any]]:
    yield EnvironmentPlugin(
        name="nemo_gym",
        summary="Resources servers of NeMo-Gym, for example nemo_gym:http://127.0.0.1:8000.",
        params=NemoGymParams,
        load=_EXTRA.load_from("rllm_envs.nemo_gym.environment", "NemoGym"),
        check=_EXTRA.call_lazily("rllm_envs.nemo_gym.environment", "check_server"),
        check_task=_EXTRA.call_lazily("rllm_envs.nemo_gym.environment", "check_row"),
        family_option="url",
        # A prompt contains the tools and all turns until then.
        defaults={
            "rllm.workflow.name": "tool_calling",
            "data.max_prompt_length": 8192,
            "data.max_response_length": 1024,
        },
    )
