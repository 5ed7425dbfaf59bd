"""Observers: watch the training loop without being part of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from rllm_core.contracts.engine import RolloutEngine
    from rllm_core.contracts.tracker import TrackedRun
    from rllm_core.contracts.train_step import TrainStep
    from rllm_core.schema.run_config import RunConfig


class Observer:
    """Override what you want to see; every method may be left as it is. Exceptions end the run."""

    @property
    def answers_again(self) -> bool:
        """Whether `wrap_engine` gives an engine that answers calls of rounds after a resume as it did before. Rounds
        that older weights play are then played to their end before a checkpoint is written, and once more from it."""
        return False

    def wrap_engine(self, engine: RolloutEngine, run: TrackedRun) -> RolloutEngine:
        """Before anything is played or loaded: what is returned samples for all attempts of the run."""
        return engine

    def state_dict(self) -> dict[str, Any]:
        """JSON data for a checkpoint, which is written next; empty: nothing. What it relies on is on disk by then."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of a checkpoint, before `on_train_start`. Not called where it holds none."""

    def on_checkpoint(self, finished_steps: int, first_round: int) -> None:
        """A checkpoint is on disk. No checkpoint that is kept goes on with a round before `first_round`."""

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        """Before the first step. `first_step` is above 0 in a resumed run."""

    def on_epoch_start(self, epoch: int) -> None:
        """Before the first step of an epoch (counted from 0)."""

    def on_batch_start(self, step: TrainStep) -> None:
        """Before the first stage of a step; in asynchronous training some of its tasks may have been played already."""

    def on_policy_updated(self, step: TrainStep) -> None:
        """Rollouts from here on use the new weights, `step.weight_version`."""

    def on_batch_end(self, step: TrainStep) -> None:
        """After the last stage; `step.metrics` is complete."""

    def on_epoch_end(self, epoch: int) -> None:
        """After the last step of an epoch."""

    def on_validation_start(self, global_step: int) -> bool:
        """Return False to skip this validation."""
        return True

    def on_validation_end(self, global_step: int, metrics: dict[str, float]) -> None:
        """`metrics` are the ``val/…`` figures."""

    def on_train_end(self, global_step: int) -> None:
        """After the last step, also when the run was stopped early."""


@dataclass(frozen=True, kw_only=True)
class ObserverPlugin(Plugin[ParamsT]):
    """Offers an observer. Chosen by ``rllm.trainer.observers``. `load` returns a factory that takes the options."""

    kind: ClassVar[str] = "observer"

    load: Callable[[], Callable[[Any], Observer]]
    joins: Callable[[RunConfig], bool] | None = None
    """Whether a run of this configuration has it, with default options, where it does not name it. None: no run."""
