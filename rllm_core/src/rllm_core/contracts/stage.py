"""Pipeline stages: what happens to one training step, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from rllm_core.contracts.stage_context import StageContext
    from rllm_core.contracts.train_step import TrainStep


class Stage(Protocol):
    """Reads and writes fields of the step, as its record declares.

    A stage that keeps something between steps also has ``state_dict()`` and ``load_state_dict(state)``.
    """

    async def __call__(self, step: TrainStep, /) -> None: ...


@dataclass(frozen=True, kw_only=True)
class StagePlugin(Plugin[ParamsT]):
    """Offers a stage. Placed by ``rllm.pipeline``.

    `load` returns a factory that takes the context (config, backend, runner) and the options.
    """

    kind: ClassVar[str] = "stage"

    load: Callable[[], Callable[[StageContext, Any], Stage]]
    reads: frozenset[str]
    """What must have been written by an earlier stage, such as ``trajectory_groups`` or ``batch.advantages``."""
    writes: frozenset[str]
    """What it leaves behind for later stages."""
    always: bool = False
    """Whether it runs even when an earlier stage found nothing to train on."""
    is_rollout_stage: bool = False
    """Whether it only plays episodes, so that asynchronous training may run it ahead of the update of an earlier step.
    It keeps nothing between steps, and comes before all stages that read or write the batch or the weights. It may run
    for several steps at once; it seeds what it draws with `TrainStep.task_batch`, since `global_step` may still
    change."""
    off_policy: bool = False
    """Whether its episodes were sampled by other weights than those that are trained. Each role then needs a loss with
    an importance ratio, or ``rllm.algorithm.rollout_correction.tis_mode``. How many attempts a task has, it decides."""
