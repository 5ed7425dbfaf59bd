"""The usual way to verl's training workers, as a baseline: rows padded to rectangles first, then made ragged again.

It does what verl's agent loops and its trainer do with rows of tokens: lists are padded to the longest prompt and
response that the configuration allows, prompts on the left, responses on the right; rows become one batch with masks
and positions; and `left_right_2_no_padding` takes the padding out before workers are called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor

from rllm_core.batch import TokenBatch


@dataclass(frozen=True)
class ListRow:
    """A row as verl's agent loops have it (`AgentLoopOutput`), with what an update needs beside."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    columns: dict[str, list[float]]
    """Of the response."""


def list_rows(batch: TokenBatch, prompt_lengths: Sequence[int], columns: dict[str, NDArray]) -> list[ListRow]:
    """What the transform starts from; not part of what is measured."""
    rows = []
    for start, end, length in zip(batch.row_offsets, batch.row_offsets[1:], prompt_lengths, strict=False):
        response = slice(start + length, end)
        rows.append(
            ListRow(
                prompt_ids=batch.tokens[start : start + length].tolist(),
                response_ids=batch.tokens[response].tolist(),
                response_mask=batch.loss_mask[response].astype(int).tolist(),
                columns={name: column[response].tolist() for name, column in columns.items()},
            )
        )
    return rows


def padded_transform(
    rows: Sequence[ListRow], max_prompt_length: int, max_response_length: int, pad_id: int = 0
) -> TensorDict:
    """A batch as verl's trainer hands it to its workers.

    Returns:
        (n_row,) nested ``input_ids`` and ``position_ids``; ``prompts``, ``responses``, masks and columns padded.
    """
    from verl.workers.utils.padding import left_right_2_no_padding

    padded = [_padded_row(row, max_prompt_length, max_response_length, pad_id) for row in rows]
    tensors = {name: torch.cat([row[name] for row in padded]) for name in padded[0]}
    return left_right_2_no_padding(TensorDict(tensors, batch_size=[len(rows)]))


def _padded_row(row: ListRow, max_prompt_length: int, max_response_length: int, pad_id: int) -> dict[str, Tensor]:
    missing_prompt = max_prompt_length - len(row.prompt_ids)
    missing = max_response_length - len(row.response_ids)
    prompts = torch.tensor([[pad_id] * missing_prompt + row.prompt_ids])
    responses = torch.tensor([row.response_ids + [pad_id] * missing])
    attention_mask = torch.tensor(
        [[0] * missing_prompt + [1] * (len(row.prompt_ids) + len(row.response_ids)) + [0] * missing]
    )
    return {
        "prompts": prompts,
        "responses": responses,
        "response_mask": torch.tensor([row.response_mask + [0] * missing]),
        "input_ids": torch.cat([prompts, responses], dim=1),
        "attention_mask": attention_mask,
        "position_ids": (attention_mask.cumsum(dim=1) - 1).clamp(min=0),
    } | {name: torch.tensor([column + [0.0] * missing]) for name, column in row.columns.items()}
