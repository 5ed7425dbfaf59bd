"""StageContext: the parts of a run that a stage may use."""

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
    from rllm_core.contracts.teacher import Teacher
    from rllm_core.schema.run_config import RunConfig


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """The parts of a run that stages receive. Made once per run, after all plugin names in the config are resolved."""

    config: RunConfig
    seed: int
    backend: Backend
    runner: Runner
    grouping: PluginChoice[Any]
    rejection: RejectionMode
    rejection_name: str
    """The mode's qualified name. Its saved state is stored under this name."""
    needs: frozenset[str]
    """All columns that the run's estimators and losses need; see `EstimatorPlugin.needs`."""
    estimator_of: Callable[[str], PluginChoice[EstimatorPlugin[Any]]]
    """Takes a role and returns its estimator."""
    loss_of: Callable[[str], PluginChoice[LossPlugin[Any]]]
    """Takes a role and returns its loss."""
    log: Callable[[int, Mapping[str, float]], None]
    """Sends the metrics of a step to all trackers and the run directory."""
    max_context: int
    """`RolloutEngine.max_context`: maximum number of tokens in a row of the batch. The backend rejects longer rows."""
    teacher: Teacher | None = None
    """The run's teacher (``rllm.teacher``). A stage that uses it lists this key in `config_keys`, and the run then has
    a teacher."""
    traces_tokens: bool = False
    """True if every update returns a token trace (`UpdatePlan.trace`)."""
