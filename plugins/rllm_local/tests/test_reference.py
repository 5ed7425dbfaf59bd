"""The reference model stays what it was, and a checkpoint knows which one it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from expecting import expect_error
from local_models import build_tiny, make_plan, make_updater, random_batch, weights_of

from rllm_core.errors import CheckpointError
from rllm_local.reference import Reference


def test_training_does_not_reach_it() -> None:
    model = build_tiny(0)
    before = weights_of(model)
    reference = Reference(model)
    make_updater(model).update(random_batch([(4, 3), (5, 2)]), make_plan())
    assert torch.equal(weights_of(reference.model), before)
    assert not torch.equal(weights_of(model), before)
    assert not any(parameter.requires_grad for parameter in reference.model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_model_is_recognized_and_another_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    Reference(build_tiny(0).to(dtype)).save(tmp_path)
    Reference(build_tiny(0).to(dtype)).check(tmp_path)
    other = build_tiny(0).to(dtype)
    with torch.no_grad():
        next(other.parameters())[0, 0] += 0.5
    with expect_error(CheckpointError, "reference-changed", "model.name", tmp_path):
        Reference(other).check(tmp_path)
