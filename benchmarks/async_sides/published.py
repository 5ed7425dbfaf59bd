"""Published times, a model of devices that is fitted to them, and published gains.

Times of DAPO on Qwen2.5-Math-7B, H20 GPUs, 512 prompts of 16 responses of at most 28k tokens a step:
https://github.com/volcengine/verl/blob/main/docs/advance/fully_async.md (table "Asynchronous Training on 7B Model").
Lengths are not published: lognormal with a sigma of 1, in units of the mean, and cut at 14 of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from async_sides.events import Rate, Turn, World
from numpy.typing import NDArray

TASKS, GROUP, SIGMA, LONGEST = 512, 16, 1.0, 14.0
STEP = {32: 790.10, 64: 365.28, 128: 356.30}
"""Number of GPUs -> seconds of a synchronous step. Sampling and training share the GPUs."""
GENERATE = {32: 357.41, 64: 150.72, 128: 177.85}
"""Number of GPUs -> seconds of sampling in such a step."""
ASYNC_STEP = {32: 294.77, 64: 189.26, 128: 150.63}
"""Number of GPUs -> seconds of an asynchronous step (half of the GPUs per side, completion order, threshold 0.5)."""
OWN_UPDATE = {16: 269.80, 32: 156.98, 64: 113.16}
"""Number of training GPUs -> seconds of the update in such a step."""
SEQUENCES = 256
"""Concurrent sequences on a sampling GPU: vLLM's default."""
SYNC_WEIGHTS = 0.3
"""Seconds: https://github.com/volcengine/verl/blob/main/docs/advance/one_step_off.md, "under 300ms"."""
GAINS = (
    ("verl, fully asynchronous", "1.70 to 2.67", "the first page above, 32 to 128 GPUs, whole runs"),
    ("verl, one step off", "1.23 to 1.40", "the second page above, 16 GPUs a node"),
    ("AReaL", "up to 2.77", "https://arxiv.org/abs/2505.24298"),
    ("ROLL Flash", "up to 2.24 and 2.72", "https://arxiv.org/abs/2510.11345"),
    ("PipelineRL", "about 2", "https://arxiv.org/abs/2509.19128"),
)


def drawn_lengths(count: int) -> NDArray[np.float64]:
    """Return the lengths of responses, (count,), in units of the mean. They are the same in every call."""
    drawn = np.random.default_rng(0).lognormal(0.0, SIGMA, count)
    drawn /= np.exp(SIGMA**2 / 2)
    return np.minimum(drawn, LONGEST)


def seconds_to_sample(lengths: NDArray[np.float64], single: float, shared: float) -> float:
    """Return the seconds to sample a batch whose responses all begin at once.

    Args:
        lengths: lengths of the responses, (n,).
        single: seconds per unit of length for a sequence that shares no device.
        shared: seconds per unit of length on all devices when they are busy.
    """
    between = np.diff(np.sort(lengths), prepend=0.0)
    sequences = len(lengths) - np.arange(len(lengths))
    return float((between * np.maximum(single, shared * sequences)).sum())


@dataclass(frozen=True)
class Devices:
    """Speed of GPUs as in the published runs."""

    lengths: NDArray[np.float64]
    """Lengths of the responses in the order in which they are drawn."""

    @cached_property
    def _sampling(self) -> tuple[float, float]:
        """Fitted seconds per unit of length: for a single sequence, and for one busy GPU."""
        batch = self.lengths[: TASKS * GROUP]
        tries = [(single, busy) for single in np.geomspace(1, 40, 60) for busy in np.geomspace(0.1, 3, 60)]

        def distance(single: float, busy: float) -> float:
            found = [seconds_to_sample(batch, single, busy / gpus) / seconds for gpus, seconds in GENERATE.items()]
            return float(np.square(np.log(found)).sum())

        return min(tries, key=lambda each: distance(*each))

    def generate(self, gpus: float) -> float:
        """Return the seconds to sample a batch with all GPUs."""
        single, busy = self._sampling
        return seconds_to_sample(self.lengths[: TASKS * GROUP], single, busy / gpus)

    def rate(self, gpus: float) -> Rate:
        """Return the rate: units of length per second of each sequence."""
        single, busy = self._sampling
        return lambda sequences: 1 / max(single, busy / gpus * sequences)

    def step(self, gpus: float) -> float:
        """Return the seconds of a synchronous step with all GPUs."""
        return self.generate(gpus) + _of_gpus({each: STEP[each] - GENERATE[each] for each in STEP}, gpus)

    def world(self, sampling: float, training: float) -> World:
        """Return a world with separate GPUs for sampling and for training."""
        turns: list[tuple[Turn]] = [((float(length), 0.0),) for length in self.lengths]
        return World(
            tasks=TASKS,
            group=GROUP,
            turns_of=turns.__getitem__,
            rate=self.rate(sampling),
            update=_of_gpus(OWN_UPDATE, training),
            sync_weights=SYNC_WEIGHTS,
            slots=int(SEQUENCES * sampling),
        )


def _of_gpus(seconds: Mapping[int, float], gpus: float) -> float:
    """Return seconds from a constant part and a part that the GPUs share, both fitted to published seconds."""
    published = np.array(list(seconds.values()))
    parts = np.array([[1.0, 1.0 / each] for each in seconds]) / published[:, None]
    every, shared = np.linalg.lstsq(parts, np.ones(len(published)), rcond=None)[0]
    return float(every + shared / gpus)
