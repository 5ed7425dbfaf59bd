"""What a smoke run must show, and what it means when it does not."""

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
    """One figure of a run."""

    metric: str
    """Its name in metrics.jsonl."""
    expected: str
    """The numbers to expect, for people."""
    holds: Callable[[int, float], bool]
    """Whether the value of a step (from 0) is one of them."""
    otherwise: str
    """What is wrong when it is not."""

    def problem(self, steps: Sequence[Metrics]) -> str | None:
        """What is wrong with the first step that does not hold; None: all hold."""
        for number, step in enumerate(steps):
            value = step.get(self.metric)
            if value is None or not math.isfinite(value) or not self.holds(number, value):
                found = "missing" if value is None else f"{value:.4g}"
                return (
                    f"{self.metric} is {found} in step {number + 1}, and {self.expected} is expected: {self.otherwise}"
                )
        return None

    def summary(self, steps: Sequence[Metrics]) -> str:
        """The figure from its least to its greatest."""
        values = [step[self.metric] for step in steps]
        return f"{self.metric} {min(values):.2g} to {max(values):.2g} ({self.expected})"


def same_weights(limit: float) -> Expectation:
    """Trainer and sampler agree about the log-probs of sampled tokens, to `limit`."""
    return Expectation(
        metric=DIFFERENCE,
        expected=f"below {limit:g}",
        holds=lambda step, value: value < limit,
        otherwise="the sampler has other weights than the trainer, or computes with another precision or temperature",
    )


VERSIONS = Expectation(
    metric=VERSION,
    expected="the number of the step",
    holds=lambda step, value: value == step + 1,
    otherwise="a step was lost, made twice, or its weights were not brought to the sampler",
)
GRADIENTS = Expectation(
    metric=GRADIENT,
    expected="more than 0",
    holds=lambda step, value: value > 0,
    otherwise="nothing was learnt: gradients do not reach the weights",
)
STARTS_AT_ITS_REFERENCE = Expectation(
    metric=DIVERGENCE,
    expected="below 0.001 in step 1",
    holds=lambda step, value: value < 1e-3 if step == 0 else True,
    otherwise="the reference model is another than the one that training began with",
)
