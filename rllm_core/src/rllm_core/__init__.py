"""rllm-core: what plugins of rllm are written against.

Names of the program, like ``AgentTrainer``, can be imported from here too. They are loaded from the package ``rllm`` on
first use. ``__init__.pyi`` lists all names.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HERE = {
    "AlgorithmConfig": "rllm_core.schema.algorithm_sections",
    "TrajectoryGroup": "rllm_core.data.types",
}
_IN_RLLM = (
    "AgentTrainer",
    "RLLM_ADV_ESTIMATOR_REGISTRY",
    "UnifiedTrainer",
    "build_train_config",
    "get_rllm_adv_estimator",
    "get_rllm_estimator",
    "get_rllm_grouping",
    "get_rllm_loss",
    "get_rllm_rejection",
    "rLLMAdvantageEstimator",
    "register_rllm_adv_estimator",
    "register_rllm_environment",
    "register_rllm_estimator",
    "register_rllm_grouping",
    "register_rllm_loss",
    "register_rllm_rejection",
    "register_rllm_reward",
    "register_rllm_workflow",
)
__all__ = [*_HERE, *_IN_RLLM]


def __getattr__(name: str) -> Any:
    if name in _HERE:
        return getattr(import_module(_HERE[name]), name)
    if name not in _IN_RLLM:
        raise AttributeError(f"No rllm_core attribute {name}")
    try:
        program = import_module("rllm")
    except ModuleNotFoundError as error:
        if error.name != "rllm":
            raise
        raise ImportError(
            f"rllm_core.{name} needs the package rllm, which is not installed.\nhint: pip install rllm"
        ) from error
    return getattr(program, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
