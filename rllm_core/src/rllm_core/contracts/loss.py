"""Policy losses: from log-probs and advantages to one loss per sampled token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from rllm_core.data.batch import TokenBatch


@dataclass(frozen=True, kw_only=True, eq=False)
class LossInput:
    """Sampled tokens of some rows, packed without padding; every tensor is (n_sampled,) on one device.

    Only `logprobs` carries a gradient.
    """

    logprobs: Tensor
    """float32, log-probs of the sampled tokens under the weights being trained."""
    old_logprobs: Tensor
    """float32, log-probs under the weights at the start of this update."""
    advantages: Tensor
    """float32."""
    row_ids: Tensor
    """int64, which row of the batch each token belongs to; equal neighbours are one sequence. Rows are always whole,
    but which other rows are here is chance (micro-batches, ranks): a loss that looked at them would depend on it."""
    sampling_logprobs: Tensor | None = None
    """float32, log-probs as the sampler reported them, NaN for a token of which it reported none. None where a backend
    keeps only `old_logprobs`. A loss that cannot do without them says so in `LossPlugin.needs`."""
    ref_logprobs: Tensor | None = None
    """float32, log-probs under the reference model; None unless a plugin's `needs` asks for them."""
    seed: int = 0
    """For random choices; the same for all micro-batches of one optimiser step. Derive from it and the row's id."""

    @classmethod
    def from_columns(
        cls, logprobs: Tensor, row_ids: Tensor, column: Callable[[str], Tensor | None], seed: int = 0
    ) -> LossInput:
        """Make the input from columns by their names. A new column is then a new field here, and nothing else.

        Args:
            logprobs: (n_sampled,) with a gradient.
            row_ids: (n_sampled,) int64.
            column: returns the sampled tokens' entries of a column, (n_sampled,) on the same device, by the name of the
                field. It returns None for a column that does not exist.
            seed: see the field.
        """
        others = {each.name for each in fields(cls)} - {"logprobs", "row_ids", "seed"}
        columns: dict[str, Any] = {name: column(name) for name in others}
        return cls(logprobs=logprobs, row_ids=row_ids, seed=seed, **columns)

    @classmethod
    def from_batch(
        cls, batch: TokenBatch, source: NDArray[np.int64], logprobs: Tensor, row_ids: Tensor, seed: int
    ) -> LossInput:
        """Make the input from the tokens of a batch with `advantages` and `old_logprobs`.

        Args:
            batch: the columns on the CPU.
            source: (n_sampled,) positions of the sampled tokens in the batch.
            logprobs: see `from_columns`. Its device is the device of all tensors.
            row_ids: see `from_columns`.
            seed: see the field.
        """

        def column(name: str) -> Tensor | None:
            values = getattr(batch, name)
            return None if values is None else logprobs.new_tensor(values[source])

        return cls.from_columns(logprobs, row_ids, column, seed)

    def at(self, chosen: Tensor) -> LossInput:
        """The tokens for which `chosen`, (n_sampled,) bool, is true."""
        columns = {name: value[chosen] for name, value in vars(self).items() if name != "seed" and value is not None}
        return replace(self, **columns)


class PolicyLoss(Protocol):
    """Returns the loss of each token, (n_sampled,) float32, to be minimised. Aggregation is done elsewhere."""

    def __call__(self, inputs: LossInput, params: Any, /) -> Tensor: ...


class ClippedTokens(Protocol):
    """Says which tokens a loss clips, (n_sampled,) bool; computed without gradient. For metrics alone."""

    def __call__(self, inputs: LossInput, params: Any, /) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class LossPlugin(Plugin[ParamsT]):
    """Offers a policy loss in torch. Chosen by ``--loss``, ``rllm.algorithm.loss_fn`` or ``loss_map.<role>``."""

    kind: ClassVar[str] = "loss"

    load: Callable[[], PolicyLoss]
    load_clipped: Callable[[], ClippedTokens] | None = None
    """For a loss that clips: returns what says of each token whether a bound of this loss changes its loss or gradient.
    Metric ``actor/clip_fraction`` is their share. Rows are judged by themselves, as by the loss."""
    only_on: frozenset[str] = frozenset()
    """Names of the only backends that can compute it; empty: all that run losses written in torch can."""
    needs: frozenset[str] = frozenset()
    """Batch columns that must be filled before it runs, such as ``ref_logprobs``."""
    has_ratio: bool = True
    """Whether it compares the policy with the old one by their ratio. A loss that does not is refused in asynchronous
    training and on episodes of other weights (`StagePlugin.off_policy`), unless ``tis_mode`` weighs it by the ratio to
    the policy that sampled."""
    corrects_rollouts: bool = False
    """Whether it weighs tokens by the ratio to the policy that sampled (`LossInput.sampling_logprobs`) itself. A run in
    which ``rllm.algorithm.rollout_correction.tis_mode`` would weigh them by it once more is refused."""
