"""Check at load that a model computes on the local engine and in packed rows what transformers computes for a row."""

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
"""Largest difference of logits, relative to the largest logit."""
PROMPT, FIRST, SECOND = [1, 2, 3], [4, 5, 6], [7, 8, 9]
"""Tokens of the probe: two rows with the same prompt."""


def check_family(model: Any, name: str) -> None:
    """Compare logits of a few tokens, computed as the engine and as training compute them, with the plain model's.

    Raises:
        ConfigError: they differ, or the model cannot be asked for them.
    """
    config = model.config.get_text_config()
    which = f"model.name={name!r} (model type {config.model_type})"
    if config._attn_implementation != "sdpa":
        raise ConfigError(
            "unsupported-model",
            f"{which} has the attention {config._attn_implementation!r}; the local engine needs 'sdpa'.",
            "Use a model with torch's scaled dot product attention, such as Llama or Qwen3.",
        )
    other = layer_types(config) - {FULL, SLIDING}
    if other:
        raise ConfigError(
            "unsupported-model",
            f"{which} has layers with {', '.join(sorted(other))}, which the local engine does not sample.",
            "Use a model whose layers have full or sliding attention, such as Llama, Qwen3 or Gemma 3.",
        )
    problem = _problem(model)
    if problem is not None:
        raise ConfigError(
            "unsupported-model", f"{which} {problem}.", "Use a model of another type, such as Llama, Qwen3 or Gemma 3."
        )


@torch.no_grad()
def _problem(model: Any) -> str | None:
    """Return why the model cannot be sampled or trained exactly, None if it can."""
    problem = "does not compute logits of token ids"
    try:
        with _short_window(model.config.get_text_config()):
            alone = [_logits(model, [PROMPT + row])[0] for row in (FIRST, SECOND)]
            problem = "ignores the positions or the attention mask that it is given"
            if _packed_rows_differ(model, alone):
                return problem
            problem = "has attention that cannot read the engine's cache of keys and values"
            return problem if _sampling_differs(model, alone) else None
    except Exception as error:  # noqa: BLE001  (each family fails in its own way, and all mean the same)
        why = " ".join(str(error).split())[:150].rstrip(".")
        return f"{problem} ({type(error).__name__}: {why})"


@contextmanager
def _short_window(config: Any) -> Iterator[None]:
    """Within, a sliding window has 2 tokens, so that few tokens show whether the model keeps to its mask."""
    if SLIDING not in layer_types(config):
        yield
        return
    before, config.sliding_window = config.sliding_window, 2
    try:
        yield
    finally:
        config.sliding_window = before


def _packed_rows_differ(model: Any, alone: list[Tensor]) -> bool:
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
    return _differ(packed[0], torch.cat([row[3:] for row in alone]))


def _sampling_differs(model: Any, alone: list[Tensor]) -> bool:
    cache = SlotCache(layers=model.config.get_text_config().num_hidden_layers, slots=3, positions=6)
    # Of rows of different lengths, then of one token each in slots that are apart: the engine reads them differently.
    first = [_row(2, 0, PROMPT + FIRST[:1]), _row(0, 0, PROMPT + SECOND[:2])]
    then = [_row(2, 4, FIRST[1:2]), _row(0, 5, SECOND[2:])]
    return _differ(last_logits(model, cache, first), torch.stack([alone[0][3], alone[1][4]])) or _differ(
        last_logits(model, cache, then), torch.stack([alone[0][4], alone[1][5]])
    )


def _row(slot: int, cached: int, fresh: list[int]) -> Row:
    return Row(slot, cached, np.array(fresh, np.int32), SamplingParams(max_tokens=1), 0)


def _logits(model: Any, ids: list[list[int]], **options: Any) -> Tensor:
    logits: Tensor = model(input_ids=torch.tensor(ids, device=model.device), use_cache=False, **options).logits
    return logits


def _differ(logits: Tensor, expected: Tensor) -> bool:
    # Written so that NaN differs.
    return not bool((logits - expected).abs().max() <= NEAR * expected.abs().max())
