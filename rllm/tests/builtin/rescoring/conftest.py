"""The rescoring of recorded episodes with only the core's plugins."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded_episodes import keep, run

from rllm.builtin.rescoring.estimators import RescoredGroups, rescore
from rllm_core.contracts.estimator import AdvantageInput, Advantages, EstimatorPlugin
from rllm_core.contracts.params import NoParams
from rllm_core.plugins.registry import Registry

__all__ = ["keep", "run"]


@pytest.fixture
def configure(run: Path) -> Callable[[dict[str, Any]], None]:
    """Write the run's config from a tree. JSON is valid YAML."""
    return lambda tree: (run / "config.yaml").write_text(json.dumps(tree)) and None


@pytest.fixture
def registry() -> Registry:
    """The core's own plugins, and `stranger`: an unknown estimator."""
    registry = Registry.load(allow=[], environ={})
    registry.add(EstimatorPlugin(name="stranger", summary="A half of the reward.", load=lambda: _half))
    return registry


def _half(inputs: AdvantageInput, params: NoParams) -> Advantages:
    return Advantages(values=0.5 * inputs.rewards)


@pytest.fixture
def rescored(run: Path, registry: Registry) -> Callable[..., RescoredGroups]:
    """Rescore the run with these estimators."""

    def make(*estimators: Any, grouping: Any = None) -> RescoredGroups:
        return asyncio.run(rescore(run, estimators, grouping, registry))

    return make
