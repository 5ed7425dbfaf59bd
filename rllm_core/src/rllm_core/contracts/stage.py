"""Pipeline stages: the parts of one training step, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from rllm_core.contracts.stage_context import StageContext
    from rllm_core.contracts.train_step import TrainStep


class Stage(Protocol):
    """Reads and writes fields of the step, as its plugin spec declares.

    A stage that stores data between steps also has ``state_dict()`` and ``load_state_dict(state)``.
    """

    async def __call__(self, step: TrainStep, /) -> None: ...


@dataclass(frozen=True, kw_only=True)
class StagePlugin(Plugin[ParamsT]):
    """A plugin spec that offers a stage. Users place it with ``rllm.pipeline``.

    `load` returns a factory that takes the context (config, backend, runner) and the options.

    A stage declares the fields that it reads and writes, so that rllm can check the order before the run starts::

        from rllm_core.contracts import NoParams, StagePlugin
        from rllm_core.plugins import hookimpl

        class CountGroups:
            def __init__(self, context, params):
                pass

            async def __call__(self, step):
                step.metrics["my/groups"] = float(len(step.trajectory_groups))

        @hookimpl
        def rllm_stages():
            yield StagePlugin(
                name="count_groups",
                summary="Log the number of groups.",
                params=NoParams,
                load=lambda: CountGroups,
                reads=frozenset({"trajectory_groups"}),
                writes=frozenset(),
            )
    """

    kind: ClassVar[str] = "stage"

    load: Callable[[], Callable[[StageContext, Any], Stage]]
    reads: frozenset[str]
    """Fields that an earlier stage must have written, such as ``trajectory_groups`` or ``batch.advantages``."""
    writes: frozenset[str]
    """Fields that the stage writes for later stages."""
    always: bool = False
    """True if the stage runs even if an earlier stage found nothing to train on."""
    is_rollout_stage: bool = False
    """True if the stage only generates episodes, so that asynchronous training may run it before the update of an
    earlier step. Such a stage stores nothing between steps. It comes before all stages that read or write the batch or
    the weights. It may run for several steps concurrently. It must derive random seeds from `TrainStep.task_batch`,
    because `global_step` may still change."""
    needs: frozenset[str] = frozenset()
    """Columns of the batch that the backend computes for the stage. See `EstimatorPlugin.needs`."""
    check_plan: Callable[[Any, Any], Iterable[Any]] = lambda plan, params: ()
    """Takes a run's `rllm.planning.plan.RunPlan` and the options. Yields each `rllm.planning.problem.Problem`."""
    off_policy: bool = False
    """True if the stage's episodes were sampled by other weights than the weights that are trained. Each role then
    needs a loss with an importance ratio, or ``rllm.algorithm.rollout_correction.tis_mode``. The stage decides how many
    rollouts a task has."""
