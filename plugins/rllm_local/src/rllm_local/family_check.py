"""A check at load: the local engine and packed rows must give the same logits as transformers for a single row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rllm_core.contracts.engine import SamplingParams
from rllm_core.errors import ConfigError
from rllm_local.attention import FULL, SLIDING, layer_types, window_masks
from rllm_local.forward import Row, last_logits
from rllm_local.kv_cache import SlotCache
from rllm_local.logprobs import additive

NEAR = 1e-3
"""Maximum difference of logits, relative to the largest logit."""
PROMPT, FIRST, SECOND = [1, 2, 3], [4, 5, 6], [7, 8, 9]
"""Tokens of the probe: two rows with the same prompt."""


def check_family(model: Any, name: str) -> None:
    """Compare logits of a few tokens from the engine and from training with the plain model's logits.

    Raises:
        ConfigError: the logits differ or cannot be computed.
    """
    config = model.config.get_text_config()
    which = f"model.name={name!r} (model type {config.model_type})"
    if config._attn_implementation != "sdpa":
        raise ConfigError(
            "unsupported-model",
            f"{which} uses the attention {config._attn_implementation!r}, but the local engine needs 'sdpa'.",
            "Use a model with torch's scaled dot product attention, for example Llama or Qwen3.",
        )
    other = layer_types(config) - {FULL, SLIDING}
    if other:
        raise ConfigError(
            "unsupported-model",
            f"{which} has layers with {', '.join(sorted(other))}, which the local engine does not support.",
            "Use a model whose layers have full or sliding attention, for example Llama, Qwen3 or Gemma 3.",
        )
    problem = _problem(model)
    if problem is not None:
        raise ConfigError(
            "unsupported-model",
            f"{which} {problem}.",
            "Use a different model type, for example Llama, Qwen3 or Gemma 3.",
        )


@torch.no_grad()
def _problem(model: Any) -> str | None:
    """Return why the model cannot be sampled or trained exactly, None if it can."""
    problem = "does not compute logits of token ids"
    try:
        with _short_window(model.config.get_text_config()):
            separate = [_logits(model, [PROMPT + row])[0] for row in (FIRST, SECOND)]
            problem = "ignores its position ids or its attention mask"
            if _packed_rows_differ(model, separate):
                return problem
            problem = "has attention that cannot read the engine's cache of keys and values"
            return problem if _sampling_differs(model, separate) else None
    except Exception as error:  # noqa: BLE001  (each family fails differently, and every failure has the same meaning)
        why = " ".join(str(error).split())[:150].rstrip(".")
        return f"{problem} ({type(error).__name__}: {why})"


@contextmanager
def _short_window(config: Any) -> Iterator[None]:
    """Set the sliding window to 2 tokens in this context, so that a few tokens show if the model uses its mask."""
    if SLIDING not in layer_types(config):
        yield
        return
    before, config.sliding_window = config.sliding_window, 2
    try:
        yield
    finally:
        config.sliding_window = before


def _packed_rows_differ(model: Any, separate: list[Tensor]) -> bool:
    device = model.device
    owners = torch.tensor([[0] * 3 + [1] * 3 + [2] * 3], device=device)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 3, 4, 5]], device=device)
    visible = ((owners[:, None] == owners[:, :, None]) | (owners[:, None] == 0)).tril()[:, None]
    masks = window_masks(model.config.get_text_config(), visible, positions, positions)
    packed = _logits(
        model,
        [PROMPT + FIRST + SECOND],
        position_ids=positions,
        attention_mask=additive(masks, model.dtype),
        logits_to_keep=torch.arange(3, 9, device=device),
    )
    return _differ(packed[0], torch.cat([row[3:] for row in separate]))


def _sampling_differs(model: Any, separate: list[Tensor]) -> bool:
    cache = SlotCache(layers=model.config.get_text_config().num_hidden_layers, slots=3, positions=6)
    # First rows of different lengths, then one token each in slots that are not adjacent. The engine reads these two
    # cases differently.
    first = [_row(2, 0, PROMPT + FIRST[:1]), _row(0, 0, PROMPT + SECOND[:2])]
    then = [_row(2, 4, FIRST[1:2]), _row(0, 5, SECOND[2:])]
    return _differ(last_logits(model, cache, first), torch.stack([separate[0][3], separate[1][4]])) or _differ(
        last_logits(model, cache, then), torch.stack([separate[0][4], separate[1][5]])
    )


def _row(slot: int, cached: int, fresh: list[int]) -> Row:
    return Row(slot, cached, np.array(fresh, np.int32), SamplingParams(max_tokens=1), 0)


def _logits(model: Any, ids: list[list[int]], **options: Any) -> Tensor:
    logits: Tensor = model(input_ids=torch.tensor(ids, device=model.device), use_cache=False, **options).logits
    return logits


def _differ(logits: Tensor, expected: Tensor) -> bool:
    # The comparison is written so that NaN counts as a difference.
    return not bool((logits - expected).abs().max() <= NEAR * expected.abs().max())
