"""Worker code that extracts the sampled tokens for the losses from verl's micro-batch."""

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

SHARES = "observation_shares"
"""Name of the workers' column with the weights of observations, see `rllm_backend_kit.minibatches`. An update
without observations does not have it."""


def observations(model_output: Mapping[str, Tensor], data: TensorDict) -> tuple[Tensor, Tensor]:
    """Return the log-probs of a micro-batch's observation tokens and their shares, (n_observed,) float32 each."""
    shares = data[SHARES].values()
    places = shares.nonzero()[:, 0]
    # An engine's value at a position belongs to the next token.
    return model_output["log_probs"].values()[places - 1].float(), shares[places]


@dataclass(frozen=True, eq=False)
class SampledTokens:
    """A micro-batch's sampled tokens, row after row. Tensors are (n_sampled,)."""

    data: TensorDict
    """The micro-batch, see ``rllm_verl.rows.DealtRows.tensordict``."""
    places: Tensor
    """Indices of the sampled tokens among the micro-batch's tokens, int64."""
    row_ids: Tensor
    """Each token's row in the batch, int64."""
    roles: Tensor
    """Index of each token's role, int64."""
    logprobs: Tensor
    """Log-probs of the tokens, float32."""
    entropy: Tensor | None
    """Entropy of each token's sampling distribution, float32. None if the engine did not compute it."""

    @classmethod
    def from_model_output(cls, model_output: Mapping[str, Tensor], data: TensorDict) -> SampledTokens:
        places = data["loss_mask"].values().nonzero()[:, 0]
        lengths = data["input_ids"].offsets().diff()
        entropy = model_output.get("entropy")
        return cls(
            data=data,
            places=places,
            row_ids=data["row"].repeat_interleave(lengths)[places],
            roles=data["role"].repeat_interleave(lengths)[places],
            # An engine's value at a position belongs to the next token.
            logprobs=model_output["log_probs"].values()[places - 1].float(),
            entropy=None if entropy is None else entropy.values()[places - 1].float(),
        )

    def __len__(self) -> int:
        return len(self.places)

    def column(self, name: str) -> Tensor:
        """Return a column of the batch for the sampled tokens, float32."""
        column: Tensor = self.data[name].values()[self.places]
        return column

    def loss_input(self, seed: int) -> LossInput:
        return LossInput.from_columns(
            self.logprobs, self.row_ids, lambda name: self.column(name) if name in self.data else None, seed
        )

    def entropies(self, inputs: LossInput) -> Tensor:
        """Return the entropies in nats, float32. If the engine did not compute them, estimate them from log-probs.

        The estimate is -rho logprob, without gradient. Its mean over samples of the old policy is the entropy.
        """
        if self.entropy is not None:
            return self.entropy
        with torch.no_grad():
            return -importance_ratio(inputs) * inputs.logprobs
