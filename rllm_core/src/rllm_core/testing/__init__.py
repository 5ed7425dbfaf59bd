"""Contract tests for plugin authors: one class per kind, subclassed with the plugin's name.

    from rllm_core.testing import EstimatorContract

    class TestMedian(EstimatorContract):
        name = "median"
        options = ({}, {"scale": 2.0})

Classes are imported when they are asked for, so that only the contract of losses imports torch. Needs pytest
(``rllm-core[testing]``).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rllm_core.testing.backend import BackendContract
    from rllm_core.testing.environment import EnvironmentContract
    from rllm_core.testing.estimator import EstimatorContract
    from rllm_core.testing.fakes import stage_context
    from rllm_core.testing.grouping import GroupingContract
    from rllm_core.testing.loss import LossContract
    from rllm_core.testing.rejection import RejectionContract
    from rllm_core.testing.stage import StageContract

__all__ = [
    "BackendContract",
    "EnvironmentContract",
    "EstimatorContract",
    "GroupingContract",
    "LossContract",
    "RejectionContract",
    "StageContract",
    "stage_context",
]

_MODULES = {name: name.removesuffix("Contract").lower() for name in __all__} | {"stage_context": "fakes"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
