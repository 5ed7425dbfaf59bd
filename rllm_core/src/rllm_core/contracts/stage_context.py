"""StageContext: what a stage may use of the run it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rllm_core.contracts.backend import Backend
    from rllm_core.contracts.chosen import PluginChoice
    from rllm_core.contracts.estimator import EstimatorPlugin
    from rllm_core.contracts.loss import LossPlugin
    from rllm_core.contracts.rejection import RejectionMode
    from rllm_core.contracts.rollout import Runner
    from rllm_core.schema.run_config import RunConfig


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """Made once per run, after every name in the config has been resolved."""

    config: RunConfig
    seed: int
    backend: Backend
    runner: Runner
    grouping: PluginChoice[Any]
    rejection: RejectionMode
    rejection_name: str
    """Its qualified name, which its saved state is kept under."""
    needs: frozenset[str]
    """Everything that estimators and losses of the run want filled; see `EstimatorPlugin.needs`."""
    estimator_of: Callable[[str], PluginChoice[EstimatorPlugin[Any]]]
    """Role to its estimator."""
    loss_of: Callable[[str], PluginChoice[LossPlugin[Any]]]
    """Role to its loss."""
    log: Callable[[int, Mapping[str, float]], None]
    """Sends the metrics of a step to all trackers and the run folder."""
    traces_tokens: bool = False
    """Whether every update is to be traced (`UpdatePlan.trace`)."""
