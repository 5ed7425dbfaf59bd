"""What of sampling depends on the company of a row."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from rllm_local import tiny
from rllm_local.same_bits import BLOCK, STEP, WHOLE_BLOCK, fix_order_of_sums, fold_last_product, positions_to_read


@pytest.mark.parametrize("length", range(1, 1200, 7))
def test_positions_are_read_in_steps_and_nearly_full_blocks_whole(length: int) -> None:
    read = positions_to_read(length)
    assert read >= length
    assert read - length < max(STEP, BLOCK - WHOLE_BLOCK)
    assert read % STEP == 0
    assert read % BLOCK <= WHOLE_BLOCK


def test_a_setting_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    fix_order_of_sums()
    assert os.environ["MKL_CBWR"] == "COMPATIBLE"


def test_the_last_product_gets_rows_without_gaps() -> None:
    model: Any = tiny.build_model(70, 0)
    fold_last_product(model)
    seen: list[bool] = []
    model.lm_head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].is_contiguous()))
    with torch.inference_mode():
        model(input_ids=torch.ones(4, 3, dtype=torch.int64), logits_to_keep=1)
    assert seen == [True]
