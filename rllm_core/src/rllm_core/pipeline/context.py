"""StageContext: what a stage may use of the run it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rllm_core.config.schema import RunConfig
from rllm_core.contracts.backend import Backend, LossChoice
from rllm_core.contracts.estimator import EstimatorPlugin
from rllm_core.contracts.rejection import RejectionMode
from rllm_core.plugins.choice import Chosen
from rllm_core.rollout.runner import RolloutRunner
from rllm_core.types import Task


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """Made once per run, after every name in the config has been resolved."""

    config: RunConfig
    seed: int
    backend: Backend
    runner: RolloutRunner
    grouping: Chosen[Any]
    rejection: RejectionMode
    rejection_name: str
    """Its qualified name, which its saved state is kept under."""
    needs: frozenset[str]
    """Everything that estimators and losses of the run want filled; see `EstimatorPlugin.needs`."""
    more_tasks: Callable[[], list[Task]]
    """Draws the next tasks, for a stage that wants to play more of them in the same step."""
    estimator_of: Callable[[str], Chosen[EstimatorPlugin[Any]]]
    """Role to its estimator."""
    loss_of: Callable[[str], LossChoice]
    """Role to its loss."""
    log: Callable[[int, Mapping[str, float]], None]
    """Sends the metrics of a step to all trackers and the run folder."""
