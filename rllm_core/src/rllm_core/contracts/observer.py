"""Observers: watch the training loop without being part of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from rllm_core.contracts.train_step import TrainStep


class Observer:
    """Override what you want to see; every method may be left as it is. Exceptions end the run."""

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
