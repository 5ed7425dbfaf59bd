"""The stage `echo`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts.objective import ObjectivePlugin
from rllm_core.contracts.stage import StagePlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1


@hookimpl
def rllm_stages() -> Iterable[StagePlugin[Any]]:
    yield StagePlugin(
        name="echo",
        summary="Also train the model to predict the environment's observations (`--objective echo`).",
        load_params=load_from("rllm.builtin.echo.stage", "EchoParams"),
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
