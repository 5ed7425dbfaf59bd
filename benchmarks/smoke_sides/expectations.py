"""Expected values of a smoke run, and the meaning of deviations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Metrics = Mapping[str, float]
DIFFERENCE = "actor/rollout_logprob_difference"
GRADIENT = "actor/grad_norm"
DIVERGENCE = "actor/kl_ref"
VERSION = "train/weight_version"


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """An expected metric of a run."""

    metric: str
    """The metric's name in metrics.jsonl."""
    expected: str
    """The expected values as text."""
    is_expected: Callable[[int, float], bool]
    """Returns True if a step's value is expected. Steps count from 0."""
    otherwise: str
    """The likely fault if it is not."""

    def problem(self, steps: Sequence[Metrics]) -> str | None:
        """Return the problem of the first unexpected step. None if all are as expected."""
        for number, step in enumerate(steps):
            value = step.get(self.metric)
            if value is None or not math.isfinite(value) or not self.is_expected(number, value):
                found = "missing" if value is None else f"{value:.4g}"
                return (
                    f"{self.metric} is {found} in step {number + 1}, and {self.expected} is expected: {self.otherwise}"
                )
        return None

    def summary(self, steps: Sequence[Metrics]) -> str:
        """Return the metric's range."""
        values = [step[self.metric] for step in steps]
        return f"{self.metric} {min(values):.2g} to {max(values):.2g} ({self.expected})"


def same_weights(limit: float) -> Expectation:
    """Trainer and sampler agree on the log-probs of sampled tokens within `limit`."""
    return Expectation(
        metric=DIFFERENCE,
        expected=f"below {limit:g}",
        is_expected=lambda step, value: value < limit,
        otherwise="the sampler has other weights than the trainer, or computes with another precision or temperature",
    )


VERSIONS = Expectation(
    metric=VERSION,
    expected="the number of the step",
    is_expected=lambda step, value: value == step + 1,
    otherwise="a step was lost, made twice, or its weights were not brought to the sampler",
)
GRADIENTS = Expectation(
    metric=GRADIENT,
    expected="more than 0",
    is_expected=lambda step, value: value > 0,
    otherwise="nothing was learned, because gradients do not reach the weights",
)
STARTS_AT_ITS_REFERENCE = Expectation(
    metric=DIVERGENCE,
    expected="below 0.001 in step 1",
    is_expected=lambda step, value: value < 1e-3 if step == 0 else True,
    otherwise="the reference model is another than the one that training began with",
)
