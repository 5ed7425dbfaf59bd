"""Events of a fake run, in the order of the training loop: events for observers, metrics for trackers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rllm_core.contracts.observer import Observer
from rllm_plugin_kit.steps import FIELD_NAMES, WatchedStep, make_step

EVENTS = tuple(name for name in vars(Observer) if name.startswith("on_"))
LOG = "log"
"""Event that only trackers receive."""
STEPS = 4
STEPS_PER_EPOCH = 2
EVERYTHING = frozenset().union(*FIELD_NAMES.values())
METRICS: Mapping[str, float] = {
    "reward/agent/mean": 0.5,
    "batch/solved": 1,
    "actor/grad_norm": math.nan,
    "actor/largest": math.inf,
    "actor/smallest": -math.inf,
    "actor/beyond_float32": -1e300,
}
"""Metrics of every step: whole numbers, and numbers that occur in a failing training."""
VALIDATION: Mapping[str, float] = {"val/openai/gsm8k/pass@1": 0.25, "val/ünïcödé/reward": 0.125}


class Event(NamedTuple):
    """A method of `Observer` or `LOG`, and its arguments."""

    name: str
    arguments: tuple[Any, ...]


def events(first_step: int = 0, last_step: int = STEPS) -> Iterator[Event]:
    """A run from a first to a last step. It is resumed if the first is not 0, and stopped if the last is not `STEPS`.

    It validates before the first step and after every epoch; its second step has nothing to train on.
    """
    yield Event("on_train_start", (STEPS, first_step))
    if first_step == 0:
        yield from _validation(0)
    for number in range(first_step, last_step):
        yield from _step(number)
        if (number + 1) % STEPS_PER_EPOCH == 0:
            yield Event("on_epoch_end", (number // STEPS_PER_EPOCH,))
            yield from _validation(number + 1)
    yield Event("on_checkpoint", (last_step, last_step))
    yield Event("on_train_end", (last_step,))


def _step(number: int) -> Iterator[Event]:
    if number % STEPS_PER_EPOCH == 0:
        yield Event("on_epoch_start", (number // STEPS_PER_EPOCH,))
    skipped = number == 1
    step = make_step(frozenset() if skipped else EVERYTHING, number=number)
    step.total_steps, step.epoch = STEPS, number // STEPS_PER_EPOCH
    yield Event("on_batch_start", (_empty(step),))
    for stage in ("generate", "update"):
        yield Event("on_stage_start", (step, stage))
        yield Event("on_stage_end", (step, stage))
    if skipped:
        step.skip("all_groups_dropped")
    step.metrics.update(METRICS)
    yield Event(LOG, (number, dict(METRICS)))
    if not skipped:
        step.weight_version += 1
        yield Event("on_policy_updated", (step,))
    yield Event("on_batch_end", (step,))


def _empty(step: WatchedStep) -> WatchedStep:
    """The step before its first stage."""
    empty = make_step(frozenset(), number=step.global_step)
    empty.total_steps, empty.epoch = step.total_steps, step.epoch
    return empty


def _validation(finished: int) -> Iterator[Event]:
    yield Event("on_validation_start", (finished,))
    yield Event(LOG, (finished - 1, dict(VALIDATION)))
    yield Event("on_validation_end", (finished, dict(VALIDATION)))
