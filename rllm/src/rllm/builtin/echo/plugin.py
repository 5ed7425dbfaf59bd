"""The stage `echo`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field

from rllm_core.contracts.objective import ObjectivePlugin
from rllm_core.contracts.plugin import Params
from rllm_core.contracts.stage import StagePlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1


class EchoParams(Params):
    """Options of the stage ``echo``."""

    weight: float = Field(0.1, gt=0, description="Factor of the mean of -log p over the observation tokens.")
    roles: tuple[str, ...] = Field(
        ("user", "tool"),
        min_length=1,
        description="Roles of the messages to predict. The tokens between two responses are trained if all messages "
        "between them have such a role.",
    )


@hookimpl
def rllm_stages() -> Iterable[StagePlugin[Any]]:
    yield StagePlugin(
        name="echo",
        summary="Also train the model to predict the environment's observations (`--objective echo`).",
        params=EchoParams,
        load=load_from("rllm.builtin.echo.stage", "Echo"),
        reads=frozenset({"batch"}),
        writes=frozenset({"batch.observation_weights"}),
    )


@hookimpl
def rllm_objectives() -> Iterable[ObjectivePlugin]:
    yield ObjectivePlugin(
        name="echo",
        summary="Rewards, and predicting the environment's observations.",
        stage="rllm/echo",
        defaults={"rllm.pipeline.insert": [{"stage": "echo", "after": "advantages"}]},
    )
