"""rllm-core: data, pipeline, extension points and command line of rllm."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from rllm_core.config.algorithm_sections import AlgorithmSection
    from rllm_core.estimator_names import RLLM_ADV_ESTIMATOR_REGISTRY as RLLM_ADV_ESTIMATOR_REGISTRY
    from rllm_core.python_plugins import rLLMAdvantageEstimator as rLLMAdvantageEstimator
    from rllm_core.registration import get_rllm_adv_estimator as get_rllm_adv_estimator
    from rllm_core.registration import get_rllm_estimator as get_rllm_estimator
    from rllm_core.registration import get_rllm_grouping as get_rllm_grouping
    from rllm_core.registration import get_rllm_loss as get_rllm_loss
    from rllm_core.registration import get_rllm_rejection as get_rllm_rejection
    from rllm_core.registration import register_rllm_adv_estimator as register_rllm_adv_estimator
    from rllm_core.registration import register_rllm_estimator as register_rllm_estimator
    from rllm_core.registration import register_rllm_grouping as register_rllm_grouping
    from rllm_core.registration import register_rllm_loss as register_rllm_loss
    from rllm_core.registration import register_rllm_rejection as register_rllm_rejection
    from rllm_core.train_config import build_train_config as build_train_config
    from rllm_core.trainer import AgentTrainer as AgentTrainer
    from rllm_core.trainer import UnifiedTrainer as UnifiedTrainer
    from rllm_core.types import TrajectoryGroup as TrajectoryGroup

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
_PLACES = {f"{verb}_rllm_{kind}": "registration" for verb in ("get", "register") for kind in _REGISTRABLE} | {
    "AgentTrainer": "trainer",
    "AlgorithmConfig": "config.algorithm_sections:AlgorithmSection",
    "RLLM_ADV_ESTIMATOR_REGISTRY": "estimator_names",
    "TrajectoryGroup": "types",
    "UnifiedTrainer": "trainer",
    "build_train_config": "train_config",
    "rLLMAdvantageEstimator": "python_plugins",
}
"""Where each name is: a module of this package, and the name there if it is another."""
