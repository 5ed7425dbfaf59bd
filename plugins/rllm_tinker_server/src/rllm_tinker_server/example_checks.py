"""Refuses data that cannot be trained on, and says which datum it is, before anything is computed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rllm_tinker_server.losses import Loss, find_loss
from rllm_tinker_server.messages import BaseModel, Example, ForwardBackward, RequestRefused


def check_examples(request: ForwardBackward, base: BaseModel) -> None:
    """Let a request pass whose examples are what its loss and the model can read.

    Raises:
        RequestRefused: they are not.
    """
    loss = find_loss(request.loss)
    if not request.examples:
        raise RequestRefused("forward_backward without data. Send one datum at least.")
    for index, example in enumerate(request.examples):
        try:
            _check_tokens(example, base)
            _check_targets(example, loss, request.loss, base)
            _check_inputs(example, loss, request.loss)
        except RequestRefused as refusal:
            raise RequestRefused(f"Datum {index}: {refusal}") from None


def check_ids(ids: NDArray[np.integer], vocabulary: int, what: str) -> None:
    """Raise RequestRefused when some of `ids` are not tokens of the model."""
    outside = ids[(ids < 0) | (ids >= vocabulary)]
    if outside.size:
        raise RequestRefused(f"{what} has the token {outside[0]}; this model has tokens 0 to {vocabulary - 1}.")


def _check_tokens(example: Example, base: BaseModel) -> None:
    tokens = example.tokens
    if tokens.ndim != 1:
        raise RequestRefused(f"the model input has shape {tokens.shape}; it must be (n,).")
    if not len(tokens):
        raise RequestRefused("the model input has no tokens.")
    if len(tokens) > base.max_context:
        raise RequestRefused(
            f"{len(tokens)} tokens, and {base.name} takes {base.max_context} at most. Cut it, or leave it out."
        )
    check_ids(tokens, base.vocabulary, "the model input")


def _check_targets(example: Example, loss: Loss, name: str, base: BaseModel) -> None:
    length, targets = len(example.tokens), example.targets
    if targets.ndim not in (1, 2) or len(targets) != length or not targets.size:
        raise RequestRefused(
            f"target_tokens has shape {targets.shape} and the model input {length} tokens; each token needs "
            f"one target, ({length},)."
        )
    if targets.ndim == 2 and not loss.many_targets:
        raise RequestRefused(f"target_tokens has shape {targets.shape}; {name} takes one target for each position.")
    check_ids(targets, base.vocabulary, "target_tokens")


def _check_inputs(example: Example, loss: Loss, name: str) -> None:
    needed = ", ".join(sorted(loss.inputs))
    for key in sorted(loss.inputs - example.inputs.keys()):
        raise RequestRefused(f"{key} is missing. {name} reads target_tokens, {needed}.")
    for key in sorted(example.inputs.keys() - loss.inputs):
        raise RequestRefused(f"{name} has no input {key!r}. It reads target_tokens, {needed}; leave others out.")
    for key, values in example.inputs.items():
        if values.shape != example.targets.shape:
            raise RequestRefused(f"{key} has shape {values.shape} and target_tokens {example.targets.shape}.")
        if not np.isfinite(values).all():
            raise RequestRefused(f"{key} has {int((~np.isfinite(values)).sum())} values that are NaN or infinite.")
    if "sequence_ratio_mask" in loss.inputs and not example.inputs["sequence_ratio_mask"].any():
        raise RequestRefused(f"sequence_ratio_mask marks no position; {name} takes the mean over those it marks.")
