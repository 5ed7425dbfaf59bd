"""Pipeline stages: the parts of one training step, in order. Each receives the run's `StageContext`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from rllm_core.contracts.backend import Backend
    from rllm_core.contracts.chosen import PluginChoice
    from rllm_core.contracts.engine import SamplingParams
    from rllm_core.contracts.estimator import EstimatorPlugin
    from rllm_core.contracts.loss import LossPlugin
    from rllm_core.contracts.rejection import RejectionMode
    from rllm_core.contracts.teacher import Teacher
    from rllm_core.contracts.train_step import TrainStep
    from rllm_core.data.types import Episode, Task
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
    """All columns that the run's estimators and losses need. See `EstimatorPlugin.needs`."""
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


@dataclass(frozen=True, kw_only=True)
class RolloutRequest:
    """A request to run every task `rollouts` times."""

    tasks: Sequence[Task]
    rollouts: int
    sampling: SamplingParams
    """Sampling settings. Their `seed` is the seed of the whole request. Each rollout derives its own seed."""
    label: str
    """Part of session names, such as ``train`` or ``val``. It separates training from validation."""
    priority: int = 0
    """Priority among concurrent requests. Rollouts of the request with the lowest number start first."""


class Runner(Protocol):
    """Generates rollouts with the run's workflow, agent and environment."""

    async def run(self, order: RolloutRequest) -> list[Episode]:
        """Return all episodes, ordered by task and then by rollout."""
        ...


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

        from rllm_core.contracts import StagePlugin
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
