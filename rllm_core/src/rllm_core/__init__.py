"""rllm-core: data, pipeline, extension points and command line of rllm."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from rllm_core.api.estimator_names import RLLM_ADV_ESTIMATOR_REGISTRY as RLLM_ADV_ESTIMATOR_REGISTRY
    from rllm_core.api.python_plugins import rLLMAdvantageEstimator as rLLMAdvantageEstimator
    from rllm_core.api.registration import get_rllm_adv_estimator as get_rllm_adv_estimator
    from rllm_core.api.registration import get_rllm_estimator as get_rllm_estimator
    from rllm_core.api.registration import get_rllm_grouping as get_rllm_grouping
    from rllm_core.api.registration import get_rllm_loss as get_rllm_loss
    from rllm_core.api.registration import get_rllm_rejection as get_rllm_rejection
    from rllm_core.api.registration import register_rllm_adv_estimator as register_rllm_adv_estimator
    from rllm_core.api.registration import register_rllm_estimator as register_rllm_estimator
    from rllm_core.api.registration import register_rllm_grouping as register_rllm_grouping
    from rllm_core.api.registration import register_rllm_loss as register_rllm_loss
    from rllm_core.api.registration import register_rllm_rejection as register_rllm_rejection
    from rllm_core.api.train_config import build_train_config as build_train_config
    from rllm_core.api.trainer import AgentTrainer as AgentTrainer
    from rllm_core.api.trainer import UnifiedTrainer as UnifiedTrainer
    from rllm_core.data.types import TrajectoryGroup as TrajectoryGroup
    from rllm_core.schema.algorithm_sections import AlgorithmSection

    AlgorithmConfig: TypeAlias = AlgorithmSection
else:

    def __getattr__(name: str) -> Any:
        """What a program needs, imported when it is first asked for: most commands need none of it."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = _PLACES[name].partition(":")
        return getattr(import_module(f"rllm_core.{module}"), attribute or name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_PLACES})


__version__ = "0.1.0"

_REGISTRABLE = ("adv_estimator", "estimator", "grouping", "loss", "rejection")
_PLACES = {f"{verb}_rllm_{kind}": "api.registration" for verb in ("get", "register") for kind in _REGISTRABLE} | {
    "AgentTrainer": "api.trainer",
    "AlgorithmConfig": "schema.algorithm_sections:AlgorithmSection",
    "RLLM_ADV_ESTIMATOR_REGISTRY": "api.estimator_names",
    "TrajectoryGroup": "data.types",
    "UnifiedTrainer": "api.trainer",
    "build_train_config": "api.train_config",
    "rLLMAdvantageEstimator": "api.python_plugins",
}
"""Where each name is: a module of this package, and the name there if it is another."""
