"""The usual way to verl's training workers, as a baseline: rows padded to rectangles first, then made ragged again.

It follows verl's agent loops and its trainer. Lists are padded to the longest prompt and response of the configuration,
prompts on the left and responses on the right. Rows become one batch with masks and positions.
`left_right_2_no_padding` removes the padding before workers are called. verl pads with the tokenizer, which is slower
than this code. verl also pads the columns of an update (advantages and others) when it computes them. They cost nothing
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor

PAD_ID = 0


@dataclass(frozen=True)
class RowLimits:
    """Maximum numbers of tokens in the configuration."""

    prompt: int
    response: int


@dataclass(frozen=True)
class ListRow:
    """A row of verl's agent loops (`AgentLoopOutput`)."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float]


@dataclass(frozen=True)
class ArrayRow:
    """The same with arrays instead of lists."""

    prompt_ids: NDArray[np.int32]
    response_ids: NDArray[np.int32]
    response_mask: NDArray[np.bool_]
    response_logprobs: NDArray[np.float32]

    @classmethod
    def from_lists(cls, row: ListRow) -> ArrayRow:
        return cls(
            np.array(row.prompt_ids, np.int32),
            np.array(row.response_ids, np.int32),
            np.array(row.response_mask, np.bool_),
            np.array(row.response_logprobs, np.float32),
        )


def from_lists(rows: Sequence[ListRow], limits: RowLimits) -> TensorDict:
    """Return a batch as verl's trainer gives it to its workers.

    Returns:
        (n_row,) nested ``input_ids`` and ``position_ids``; ``prompts``, ``responses``, masks and log-probs padded.
    """
    padded = [_padded_row(row, limits) for row in rows]
    return _ragged({name: torch.cat([row[name] for row in padded]) for name in padded[0]})


def from_arrays(rows: Sequence[ArrayRow], limits: RowLimits) -> TensorDict:
    """Return the same from arrays, each copied once to its position: the lower bound of padding."""
    n, width = len(rows), limits.prompt + limits.response
    input_ids = np.full((n, width), PAD_ID, np.int64)
    attention_mask = np.zeros((n, width), np.int64)
    response_mask = np.zeros((n, limits.response), np.int64)
    logprobs = np.zeros((n, limits.response), np.float32)
    for index, row in enumerate(rows):
        start, length = limits.prompt - len(row.prompt_ids), len(row.response_ids)
        input_ids[index, start : limits.prompt] = row.prompt_ids
        input_ids[index, limits.prompt : limits.prompt + length] = row.response_ids
        attention_mask[index, start : limits.prompt + length] = 1
        response_mask[index, :length] = row.response_mask
        logprobs[index, :length] = row.response_logprobs
    tensors = {
        "input_ids": torch.from_numpy(input_ids),
        "attention_mask": torch.from_numpy(attention_mask),
        "response_mask": torch.from_numpy(response_mask),
        "rollout_log_probs": torch.from_numpy(logprobs),
    }
    parts = {
        "prompts": tensors["input_ids"][:, : limits.prompt].clone(),
        "responses": tensors["input_ids"][:, limits.prompt :].clone(),
        "position_ids": _positions(tensors["attention_mask"]),
    }
    return _ragged(tensors | parts)


def _padded_row(row: ListRow, limits: RowLimits) -> dict[str, Tensor]:
    """Return (1, …) tensors of one row."""
    missing_prompt = limits.prompt - len(row.prompt_ids)
    missing = limits.response - len(row.response_ids)
    prompts = torch.tensor([[PAD_ID] * missing_prompt + row.prompt_ids])
    responses = torch.tensor([row.response_ids + [PAD_ID] * missing])
    attention_mask = torch.tensor(
        [[0] * missing_prompt + [1] * (len(row.prompt_ids) + len(row.response_ids)) + [0] * missing]
    )
    return {
        "prompts": prompts,
        "responses": responses,
        "response_mask": torch.tensor([row.response_mask + [0] * missing]),
        "rollout_log_probs": torch.tensor([row.response_logprobs + [0.0] * missing]),
        "input_ids": torch.cat([prompts, responses], dim=1),
        "attention_mask": attention_mask,
        "position_ids": _positions(attention_mask),
    }


def _positions(attention_mask: Tensor) -> Tensor:
    return (attention_mask.cumsum(dim=1) - 1).clamp(min=0)


def _ragged(tensors: dict[str, Tensor]) -> TensorDict:
    from verl.workers.utils.padding import left_right_2_no_padding

    return left_right_2_no_padding(TensorDict(tensors, batch_size=[len(tensors["input_ids"])]))
