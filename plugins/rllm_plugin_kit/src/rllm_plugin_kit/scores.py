"""Probes of weight comparisons that contain one sampled response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.weight_comparison import Probe


def make_probe(prompt: Sequence[int] | NDArray[np.int32], response: NDArray[np.int32]) -> Probe:
    """Return a probe with one row that scores the tokens of a response, (n,)."""
    return Probe(tokens=np.concatenate((np.asarray(prompt, np.int32), response))[None], prompt=len(prompt))


def is_score_of(scores: Any, logprobs: NDArray[np.float32], same: float) -> bool:
    """Return True if the scores are float32 and differ from the log-probs, (n,), by at most `same`."""
    if not isinstance(scores, np.ndarray) or (scores.shape, scores.dtype) != (logprobs.shape, np.float32):
        return False
    return bool((np.abs(scores - logprobs) <= same).all())
