"""Plugin specs of minigrid-text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts import EnvironmentPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1


@hookimpl
def rllm_environments() -> Iterable[EnvironmentPlugin[Any]]:
    yield EnvironmentPlugin(
        name="minigrid_text",
        summary="Rooms of minigrid, a package for Gymnasium, as text.",
        load_params=load_from("minigrid_text.options", "MinigridTextParams"),
        load=load_from("minigrid_text.environment", "MinigridText"),
        blocking=False,
        defaults={"rllm.workflow.name": "multi_turn_workflow", "data.max_response_length": 8},
        best_possible={"reward": 1.0},
    )
