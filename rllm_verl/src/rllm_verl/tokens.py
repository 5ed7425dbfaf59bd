"""In a worker: from a micro-batch, as verl's engine hands it to a loss, to the sampled tokens that losses look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rllm_core.contracts.loss import LossInput
from rllm_core.updates.losses import importance_ratio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensordict import TensorDict


@dataclass(frozen=True, eq=False)
class SampledTokens:
    """The sampled tokens of a micro-batch, row after row; tensors are (n_sampled,)."""

    data: TensorDict
    """See ``rllm_verl.rows.DealtRows.tensordict``."""
    places: Tensor
    """int64, where they stand among the micro-batch's tokens."""
    row_ids: Tensor
    """int64, the row of the batch that each belongs to."""
    roles: Tensor
    """int64, index of its role."""
    logprobs: Tensor
    """float32."""
    entropy: Tensor | None
    """float32, of the distribution each was sampled from; None where the engine was not asked for it."""

    @classmethod
    def of(cls, model_output: Mapping[str, Tensor], data: TensorDict) -> SampledTokens:
        places = data["loss_mask"].values().nonzero()[:, 0]
        lengths = data["input_ids"].offsets().diff()
        entropy = model_output.get("entropy")
        return cls(
            data=data,
            places=places,
            row_ids=data["row"].repeat_interleave(lengths)[places],
            roles=data["role"].repeat_interleave(lengths)[places],
            # What an engine says at a position is of the next token.
            logprobs=model_output["log_probs"].values()[places - 1].float(),
            entropy=None if entropy is None else entropy.values()[places - 1].float(),
        )

    def __len__(self) -> int:
        return len(self.places)

    def column(self, name: str) -> Tensor:
        """float32, a column of the batch."""
        column: Tensor = self.data[name].values()[self.places]
        return column

    def loss_input(self, seed: int) -> LossInput:
        return LossInput.from_columns(
            self.logprobs, self.row_ids, lambda name: self.column(name) if name in self.data else None, seed
        )

    def entropies(self, inputs: LossInput) -> Tensor:
        """float32, in nats; estimated from the log-prob of the token itself where the engine was not asked.

        The estimate is -rho logprob, without gradient. Averaged over what the old policy samples this is the entropy.
        """
        if self.entropy is not None:
            return self.entropy
        with torch.no_grad():
            return -importance_ratio(inputs) * inputs.logprobs
