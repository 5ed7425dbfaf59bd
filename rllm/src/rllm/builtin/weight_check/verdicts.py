"""Verdicts about a sampler's weights, from scores of the same tokens by the trainer and by the sampler."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.weight_comparison import KnownFault, Probe, TensorDifference, WeightComparison
from rllm_core.errors import BackendError

Scores = NDArray[np.float32]
UNIT_ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Largest relative error of rounding to a type."""
ROUNDING, SUMS = 4.0, 16.0
"""Factors of `rounding_limit`. SmolLM2 stays below a fifth of the limit in each type (``benchmarks/weight_check.py``).
"""
AMPLIFIED = 1 / 8
"""Largest share of the scores that may differ by more than `rounding_limit`. If hidden states nearly cancel, a model
that diverges amplifies rounding hundreds of times, but at few tokens. Other weights change the scores of all tokens."""
MOVEMENT = 1 / 16
"""Smallest change of the trainer's scores after which a sampler that repeats its scores is stale, in units of roundoff.
"""
SHOWN = 4
"""Maximum number of tensors in a message."""


@dataclass(frozen=True, eq=False)
class Check:
    """The scores of one check."""

    version: int
    """Number of the weight sync."""
    trainer: Scores
    """Scores with the trained weights, (n_score,)."""
    samplers: Mapping[str, Scores]
    """Scores of each sampler, (n_score,), by name."""


@dataclass(frozen=True, kw_only=True)
class Verdict(ABC):
    """The relation of a sampler's weights to the trained weights."""

    number: ClassVar[int]
    """The verdict as a metric."""
    difference: float
    """Largest difference of a score, in nats."""

    @property
    @abstractmethod
    def text(self) -> str:
        """A short form of the verdict."""

    def error(self, sampler: str, version: int, advice: str) -> BackendError | None:
        """Return the error that stops the run. None if the sampler has the trained weights.

        Args:
            sampler: the sampler's name.
            version: the checked weight version.
            advice: the end of the hint, which applies to all errors.
        """
        return None

    @property
    def _size(self) -> str:
        return f"Log-probs differ by up to {self.difference:.2g}."


class Equal(Verdict):
    """All scores are equal, bit for bit."""

    number = 0
    text = "equal"


@dataclass(frozen=True, kw_only=True)
class Rounding(Verdict):
    """The scores differ by no more than the rounding of floating-point numbers explains."""

    number = 1
    limit: float
    """Limit that `rounding_limit` returns for the trainer's scores."""

    @property
    def text(self) -> str:
        return f"equal up to rounding (limit {self.limit:.2g})"


@dataclass(frozen=True, kw_only=True)
class Stale(Verdict):
    """The sampler has the weights of an earlier sync."""

    number = 2
    since: int
    """The version of these weights."""

    @property
    def text(self) -> str:
        return f"unchanged since sync {self.since}"

    def error(self, sampler: str, version: int, advice: str) -> BackendError:
        return BackendError(
            "sampler-weights-stale",
            f"After weight sync {version}, {sampler} is unchanged since sync {self.since}. {self._size}",
            f"Its last weight sync had no effect. Restart the sampler, and continue with --resume. {advice}",
        )


@dataclass(frozen=True, kw_only=True)
class Faulty(Verdict):
    """The sampler's weights are the trained weights with a `KnownFault`."""

    number = 3
    fault: KnownFault

    @property
    def text(self) -> str:
        return self.fault.value

    def error(self, sampler: str, version: int, advice: str) -> BackendError:
        return BackendError(
            "sampler-weights-faulty",
            f"After weight sync {version}, {sampler} has {self.fault.value}. {self._size}",
            f"Correct how the sampler loads the adapter, or the type of its weights. {advice}",
        )


@dataclass(frozen=True, kw_only=True)
class TensorsDiffer(Verdict):
    """Some of the sampler's tensors have other values than the trained tensors."""

    number = 4
    tensors: tuple[TensorDifference, ...]

    @property
    def text(self) -> str:
        named = [
            each.name if each.values_of is None else f"{each.name} has the values of {each.values_of}"
            for each in self.tensors[:SHOWN]
        ]
        more = len(self.tensors) - SHOWN
        return f"tensors differ: {', '.join(named)}{f' and {more} more' if more > 0 else ''}"

    def error(self, sampler: str, version: int, advice: str) -> BackendError:
        return BackendError(
            "sampler-tensors-differ",
            f"After weight sync {version}, {sampler} does not have the trained weights: {self.text}. {self._size}",
            f"Correct how these tensors are sent to the sampler and loaded there. {advice}",
        )


class Unknown(Verdict):
    """The scores differ by more than rounding, and no other verdict applies."""

    number = 5
    text = "other weights"

    def error(self, sampler: str, version: int, advice: str) -> BackendError:
        return BackendError(
            "sampler-weights-unknown",
            f"After weight sync {version}, {sampler} does not have the trained weights. {self._size}",
            f"Compare the model and the settings of the sampler with the trainer's, for example the type and the "
            f"quantization of the weights. {advice}",
        )


@dataclass(frozen=True, eq=False)
class Judge:
    """Compares a sampler's scores with the trainer's scores, now and at earlier checks."""

    comparison: WeightComparison
    probe: Probe
    history: Sequence[Check] = field(default_factory=list)
    """The checks so far, oldest first."""

    async def judge(self, checked: Check, sampler: str) -> Verdict:
        """Return the first verdict about a sampler that applies. The page ``explain/weights.md`` has the order."""
        scores, trainer = checked.samplers[sampler], checked.trainer
        difference = float(np.abs(scores - trainer).max())
        if difference == 0:
            return Equal(difference=difference)
        earlier = await self._find_earlier(checked, sampler)
        if earlier is not None:
            fault = await self._find_fault(scores, trainer, _distance(scores, earlier.trainer))
            if fault is not None:
                return Faulty(difference=difference, fault=fault)
            return Stale(difference=difference, since=earlier.version)
        limit = rounding_limit(self.comparison, trainer)
        is_rounding = _is_rounding(scores, trainer, limit)
        if not is_rounding:
            fault = await self._find_fault(scores, trainer, _distance(scores, trainer) / 2)
            if fault is not None:
                return Faulty(difference=difference, fault=fault)
        tensors = await self.comparison.different_tensors(sampler, is_suspect=not is_rounding)
        if tensors:
            return TensorsDiffer(difference=difference, tensors=tuple(tensors))
        if is_rounding:
            return Rounding(difference=difference, limit=limit)
        earlier = self._find_earlier_of_row(checked, sampler)
        if earlier is not None:
            return Stale(difference=difference, since=earlier.version)
        return Unknown(difference=difference)

    async def _find_earlier(self, checked: Check, sampler: str) -> Check | None:
        """Return the earlier check whose weights the sampler has. None if there is no such check."""
        scores, trainer = checked.samplers[sampler], checked.trainer
        threshold = MOVEMENT * UNIT_ROUNDOFF[self.comparison.dtype]
        # A resumed run checks the weights of its last check again.
        history = [each for each in self.history if each.version < checked.version]
        for earlier in history:
            own = earlier.samplers.get(sampler)
            # If the weights change very little, a sampler in a type with few bits may repeat all scores.
            has_moved = (trainer != earlier.trainer).mean() >= 0.5 and _distance(trainer, earlier.trainer) >= threshold
            if has_moved and own is not None and np.array_equal(own, scores):
                # If the trainer does not repeat its scores, their change does not prove that the weights changed.
                again = await self.comparison.of_trainer(self.probe)
                if np.array_equal(again, trainer):
                    return earlier
                break
        return _nearest(history, scores, trainer, slice(None))

    def _find_earlier_of_row(self, checked: Check, sampler: str) -> Check | None:
        """Return the earlier check whose weights scored a row of the probe. None if there is no such row.

        A service may score each row on a different replica, and perhaps a single replica has old weights.
        """
        history = [each for each in self.history if each.version < checked.version]
        length = self.probe.tokens.shape[1] - self.probe.prompt
        rows = (slice(start, start + length) for start in range(0, self.probe.n_scores, length))
        found = (_nearest(history, checked.samplers[sampler], checked.trainer, row) for row in rows)
        return next((each for each in found if each is not None), None)

    async def _find_fault(self, scores: Scores, trainer: Scores, limit: float) -> KnownFault | None:
        """Return the fault whose scores are the nearest. None if their distance exceeds `limit` or rounding."""
        suspects = await self.comparison.of_suspects(self.probe)
        fault = min(suspects, key=lambda each: _distance(scores, suspects[each]), default=None)
        if fault is None:
            return None
        suspected = suspects[fault]
        is_near = _is_rounding(scores, suspected, rounding_limit(self.comparison, suspected))
        return fault if is_near and _distance(scores, suspected) <= limit else None


def _nearest(history: Sequence[Check], scores: Scores, trainer: Scores, part: slice) -> Check | None:
    """Return the earlier check whose trainer's scores are at least twice as near as the trainer's scores now.

    Only a part of the probe is compared. None if there is no such check.
    """
    own, now = scores[part], trainer[part]
    nearest = min(history, key=lambda each: _distance(own, each.trainer[part]), default=None)
    if nearest is None:
        return None
    near = 2 * _distance(own, nearest.trainer[part])
    is_nearer = near <= _distance(now, nearest.trainer[part]) and near < _distance(own, now)
    return nearest if is_nearer else None


def rounding_limit(comparison: WeightComparison, scores: Scores) -> float:
    """Return the largest difference in nats that rounding explains between two computations of the same `scores`.

    Each layer adds its result to the hidden states with a relative error: some units of roundoff u, because values are
    rounded to the type, and some units of 2^-24, because sums are computed in float32 in an arbitrary order. The errors
    of layers are independent, so they add up by the square root of their number, and the output layer is one more. A
    relative error of the hidden states moves the logits, and so the log-probs, by this share of their size: ``(4 u + 16
    2^-24) sqrt(layers + 1) max(1, max |log-prob|)``.
    """
    error = ROUNDING * UNIT_ROUNDOFF[comparison.dtype] + SUMS * UNIT_ROUNDOFF["float32"]
    return error * math.sqrt(comparison.layers + 1) * max(1.0, float(np.abs(scores).max()))


def _is_rounding(one: Scores, other: Scores, limit: float) -> bool:
    differences = np.abs(one - other)
    return bool(np.isfinite(differences).all() and (differences > limit).mean() <= AMPLIFIED)


def _distance(one: Scores, other: Scores) -> float:
    """Return the root mean square of the differences."""
    return float(np.sqrt(np.mean(np.square(one.astype(np.float64) - other))))
