"""Comparison of each sampler's weights with the trained weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rllm_core.contracts.engine import Dtype


@dataclass(frozen=True, kw_only=True, eq=False)
class Probe:
    """Token rows that the trainer and each sampler score.

    A score is the log-prob of a token, given the tokens before it, at temperature 1.
    """

    tokens: NDArray[np.int32]
    """(n_row, length) token ids."""
    prompt: int
    """Number of tokens at the start of each row that are not scored, at least 1."""

    @property
    def n_scores(self) -> int:
        """Number of scores of all rows. Arrays of scores contain row after row."""
        return self.tokens[:, self.prompt :].size


class KnownFault(Enum):
    """A typical cause of other weights than the trained weights. Its value describes the sampler's weights."""

    NO_ADAPTER = "the base model without the adapter"
    ADAPTER_TWICE = "the adapter applied twice"
    BFLOAT16 = "the weights rounded to bfloat16"
    FLOAT16 = "the weights rounded to float16"


@dataclass(frozen=True, kw_only=True)
class TensorDifference:
    """A tensor of a sampler with other values than the trained tensor."""

    name: str
    """The tensor's name in a checkpoint of the model."""
    values_of: str | None = None
    """The trained tensor whose values it has: the name of a different tensor, or its own name and the type to which the
    values were rounded, such as ``lm_head.weight rounded to bfloat16``. None if it has the values of no trained
    tensor."""


class WeightComparison(ABC):
    """Scores the same tokens with the trained weights and with each sampler's weights.

    It exists from the end of `Backend.start` to `Backend.close`, and changes neither weights nor samples. Its methods
    are called after `Backend.start` and `Backend.sync_weights`, never two at once and never during an update. Each call
    must have a time limit. They raise BackendError if the trainer or a sampler has failed.
    """

    vocabulary: int
    """Number of token ids of the model."""
    max_context: int
    """Maximum number of tokens in a row."""
    layers: int
    """Number of layers of the model."""
    dtype: Dtype
    """The type with the fewest significant bits in which the trainer or a sampler computes."""

    @abstractmethod
    async def of_trainer(self, probe: Probe) -> NDArray[np.float32]:
        """Return the scores with the trained weights, (n_score,)."""

    @abstractmethod
    async def of_samplers(self, probe: Probe) -> Mapping[str, NDArray[np.float32]]:
        """Return the scores of each sampler that must have the trained weights, (n_score,), by its name.

        Each replica is a sampler with its own name, such as ``replica 1``, because a single replica may have old
        weights. Scores are computed by the code that samples. Samplers that serve older weight versions on purpose
        are not included.
        """

    async def of_suspects(self, probe: Probe) -> Mapping[KnownFault, NDArray[np.float32]]:
        """Return the scores, (n_score,), of the trained weights with each fault that is possible in this run.

        Called only if a sampler's scores differ by more than rounding, or equal an earlier version's scores.
        """
        return {}

    async def different_tensors(self, sampler: str, *, is_suspect: bool) -> Sequence[TensorDifference] | None:
        """Return the sampler's tensors whose values differ from the trained weights in the sampler's type.

        None if they cannot be compared exactly. Called if the sampler's scores differ and nothing else explains them.

        Args:
            sampler: a name from `of_samplers`.
            is_suspect: True if the scores differ by more than rounding. If False, any difference stops the run, so
                return None if a correct tensor may differ, or if the comparison takes longer than a few probes.
        """
        return None


@runtime_checkable
class ScoringEngine(Protocol):
    """Methods of a hosted engine whose weights can be checked. Without them, the engine is not checked."""

    async def score(self, probe: Probe) -> Mapping[str, NDArray[np.float32]]:
        """Return the scores of each replica, (n_score,), by its name. See `WeightComparison.of_samplers`.

        Rows have fewer than `RolloutEngine.max_context` tokens.
        """
        ...

    async def digests(self, replica: str) -> Mapping[str, str]:
        """Return the hexadecimal SHA-256 of a replica's tensors by their names in a checkpoint.

        A digest is computed from the values as little-endian bytes in row-major order, in `EngineSetup.dtype`. Tensors
        may be missing. If the mapping is empty, tensors are not compared.
        """
        ...
