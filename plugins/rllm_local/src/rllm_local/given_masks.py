"""Whether a model keeps to the attention mask and the positions that it is given."""

from __future__ import annotations

from typing import Any

import torch

NEAR = 1e-3
"""Largest difference of logits, relative to the largest logit."""


@torch.no_grad()
def attends_as_told(model: Any) -> bool:
    """Whether logits of two rows behind one prompt, in one sequence, are those of each row by itself.

    Some models build a mask of their own, or count positions themselves.
    """
    prompt, first, second = [1, 2, 3], [4, 5, 6], [7, 8, 9]
    owners = torch.tensor([0] * 3 + [1] * 3 + [2] * 3, device=model.device)
    visible = ((owners[None] == owners[:, None]) | (owners[None] == 0)).tril()
    packed = model(
        input_ids=torch.tensor([prompt + first + second], device=model.device),
        position_ids=torch.tensor([[0, 1, 2, 3, 4, 5, 3, 4, 5]], device=model.device),
        attention_mask=visible[None, None],
        use_cache=False,
    ).logits[0]
    alone = [
        model(input_ids=torch.tensor([prompt + row], device=model.device), use_cache=False).logits[0, 3:]
        for row in (first, second)
    ]
    expected = torch.cat(alone)
    return bool((packed[3:] - expected).abs().max() <= NEAR * expected.abs().max())
