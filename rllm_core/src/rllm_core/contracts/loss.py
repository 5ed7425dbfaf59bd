"""Policy losses: they compute one loss per sampled token from log-probs and advantages."""

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
    """Sampled tokens of some rows, packed without padding. Every tensor is (n_sampled,), and all are on one device.

    Only `logprobs` has a gradient.
    """

    logprobs: Tensor
    """float32, log-probs of the sampled tokens under the weights being trained."""
    old_logprobs: Tensor
    """float32, log-probs under the weights at the start of this update."""
    advantages: Tensor
    """float32, advantage of each token."""
    row_ids: Tensor
    """int64, the batch row of each token. Neighbors with the same id form one sequence. A row is never split. The other
    rows in the input depend on micro-batches and ranks, so a loss must not use them."""
    sampling_logprobs: Tensor | None = None
    """float32, log-probs that the sampler reported, NaN for a token without one. None if a backend stores only
    `old_logprobs`. A loss that requires them lists them in `LossPlugin.needs`."""
    ref_logprobs: Tensor | None = None
    """float32, log-probs under the reference model. None unless a plugin lists them in `needs`."""
    seed: int = 0
    """Seed for random choices. It is the same for all micro-batches of one optimizer step. Combine it with the row's
    id."""

    @classmethod
    def from_columns(
        cls, logprobs: Tensor, row_ids: Tensor, column: Callable[[str], Tensor | None], seed: int = 0
    ) -> LossInput:
        """Make the input from named columns. To add a column, you only need to add a field to this class.

        Args:
            logprobs: (n_sampled,) with a gradient.
            row_ids: (n_sampled,) int64.
            column: takes the name of a field and returns the sampled tokens' entries of this column, (n_sampled,) on
                the same device. It returns None for a column that does not exist.
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
        import torch

        def column(name: str) -> Tensor | None:
            values = getattr(batch, name)
            if values is None:
                return None
            # torch copies from pageable memory before a non-blocking copy returns. So it needs no wait.
            return torch.from_numpy(values[source]).to(logprobs.device, non_blocking=True)

        return cls.from_columns(logprobs, row_ids, column, seed)

    def at(self, chosen: Tensor) -> LossInput:
        """Return the input with only the tokens for which `chosen`, (n_sampled,) bool, is true."""
        columns = {name: value[chosen] for name, value in vars(self).items() if name != "seed" and value is not None}
        return replace(self, **columns)


class PolicyLoss(Protocol):
    """Returns the loss of each token, (n_sampled,) float32, to be minimized. The backend aggregates the values."""

    def __call__(self, inputs: LossInput, params: Any, /) -> Tensor: ...


class ClippedTokens(Protocol):
    """Returns which tokens a loss clips, (n_sampled,) bool, computed without gradient. Used only for metrics."""

    def __call__(self, inputs: LossInput, params: Any, /) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class LossPlugin(Plugin[ParamsT]):
    """A plugin spec that offers a policy loss written in torch.

    Users choose it with ``--loss``, ``rllm.algorithm.loss_fn`` or ``loss_map.<role>``.

    A loss takes log-probs and advantages of sampled tokens as torch tensors and returns the loss of each token. If your
    module needs ``import torch``, import it inside `load`::

        from rllm_core.contracts import LossPlugin
        from rllm_core.plugins import hookimpl

        def unclipped(inputs, params):
            return -(inputs.logprobs - inputs.old_logprobs).exp() * inputs.advantages

        @hookimpl
        def rllm_losses():
            yield LossPlugin(
                name="unclipped", summary="Importance ratio, no clipping.", load=lambda: unclipped
            )
    """

    kind: ClassVar[str] = "loss"

    load: Callable[[], PolicyLoss]
    load_clipped: Callable[[], ClippedTokens] | None = None
    """Set it for a loss that clips. Returns a function that marks the tokens whose loss or gradient a bound changes.
    Metric ``actor/clip_fraction`` is the share of these tokens. Like the loss, the function must treat each row
    independently."""
    needs: frozenset[str] = frozenset()
    """Batch columns that must be filled before the loss runs, such as ``ref_logprobs``."""
    has_ratio: bool = True
    """True if the loss uses the ratio between the current and the old policy. A loss without this ratio is rejected in
    asynchronous training and on episodes from other weights (`StagePlugin.off_policy`). It is allowed if ``tis_mode``
    multiplies it by the ratio to the sampling policy."""
    corrects_rollouts: bool = False
    """True if the loss itself multiplies tokens by the ratio to the sampling policy (`LossInput.sampling_logprobs`). A
    run is rejected if ``rllm.algorithm.rollout_correction.tis_mode`` would apply the same ratio a second time."""
