"""Observers: watch the training loop without being part of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from rllm_core.contracts.backend import Backend
    from rllm_core.contracts.engine import RolloutEngine
    from rllm_core.contracts.tracker import TrackedRun
    from rllm_core.contracts.train_step import TrainStep
    from rllm_core.schema.run_config import RunConfig


class Observer:
    """A listener of the training loop. Override the methods for the events that you need. Exceptions stop the run."""

    @property
    def can_replay(self) -> bool:
        """True if the engine from `wrap_engine` repeats its responses when a resumed run generates the same rollout
        batches again. Batches that older weights generate are then finished before a checkpoint is written, and are
        generated again after a resume."""
        return False

    def wrap_backend(self, backend: Backend, run: TrackedRun) -> Backend:
        """Return the backend of the run, for example a `BackendWrapper`. Called before the backend starts."""
        return backend

    def wrap_engine(self, engine: RolloutEngine, run: TrackedRun) -> RolloutEngine:
        """Return the engine that samples for all rollouts of the run. Called before anything is generated or loaded."""
        return engine

    def state_dict(self) -> dict[str, Any]:
        """Return JSON data for the next checkpoint, or an empty dict. Data that the state relies on must already be on
        disk."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint. Called before `on_train_start`, and only if the checkpoint has a state."""

    def on_checkpoint(self, finished_steps: int, first_batch: int) -> None:
        """React to a new checkpoint on disk. No stored checkpoint resumes with a rollout batch before `first_batch`."""

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        """React to the start of training, before the first step. `first_step` is above 0 in a resumed run."""

    def on_epoch_start(self, epoch: int) -> None:
        """React to the start of an epoch, before its first step. Epochs are counted from 0."""

    def on_batch_start(self, step: TrainStep) -> None:
        """React to the start of a step, before its first stage. In asynchronous training, rollouts may have already
        started."""

    def on_stage_start(self, step: TrainStep, stage: str) -> None:
        """React to the start of a stage, in the task that runs it. A rollout batch that is generated ahead has a step
        that training has not started yet."""

    def on_stage_end(self, step: TrainStep, stage: str) -> None:
        """React to the end of a stage, in the task that has run it. Also called if the stage failed."""

    def on_policy_updated(self, step: TrainStep) -> None:
        """React to new weights. Later rollouts use them. Their version is `step.weight_version`."""

    def on_batch_end(self, step: TrainStep) -> None:
        """React to the end of a step, after its last stage. `step.metrics` is complete."""

    def on_epoch_end(self, epoch: int) -> None:
        """React to the end of an epoch, after its last step."""

    def stop_reason(self) -> str | None:
        """Return why the run must stop before its next step. None to continue.

        Called before and after each step. The run then writes a checkpoint, and a resumed run continues exactly. The
        reason is printed. It should contain the key to change.
        """
        return None

    def on_validation_start(self, global_step: int) -> bool:
        """Return False to skip this validation."""
        return True

    def on_validation_end(self, global_step: int, metrics: dict[str, float]) -> None:
        """React to the end of a validation. `metrics` contains the ``val/…`` metrics."""

    def on_train_end(self, global_step: int) -> None:
        """React to the end of training, after the last step. Also called if the run was stopped early."""


@dataclass(frozen=True, kw_only=True)
class ObserverPlugin(Plugin[ParamsT]):
    """A plugin spec that offers an observer. Users choose it with ``rllm.trainer.observers``.

    `load` returns a factory that takes the options.

    For example::

        from rllm_core.contracts import Observer, ObserverPlugin
        from rllm_core.plugins import hookimpl

        class SkipEarlyValidation(Observer):
            def __init__(self, params):
                pass

            def on_validation_start(self, global_step):
                return global_step >= 10

        @hookimpl
        def rllm_observers():
            yield ObserverPlugin(
                name="skip_early_validation",
                summary="No validation in the first ten steps.",
                load=lambda: SkipEarlyValidation,
            )
    """

    kind: ClassVar[str] = "observer"

    load: Callable[[], Callable[[Any], Observer]]
    joins: Callable[[RunConfig], bool] | None = None
    """Takes the run's config. Returns True if the run gets this observer, with default options, even if the config does
    not name it. If None, only the config adds it."""
