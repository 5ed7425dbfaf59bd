"""The reference model stays what it was, and a checkpoint knows which one it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rllm_core.contracts.backend import UpdatePlan
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import CheckpointError
from rllm_local.reference import Reference
from rllm_local.update import Updater


def test_training_does_not_reach_it(
    build_tiny: Callable[[int], Any],
    random_batch: Callable[..., TokenBatch],
    make_plan: Callable[..., UpdatePlan],
    make_updater: Callable[..., Updater],
    weights_of: Callable[[Any], torch.Tensor],
) -> None:
    model = build_tiny(0)
    before = weights_of(model)
    reference = Reference(model)
    make_updater(model).update(random_batch([(4, 3), (5, 2)]), make_plan())
    assert torch.equal(weights_of(reference.model), before)
    assert not torch.equal(weights_of(model), before)
    assert not any(parameter.requires_grad for parameter in reference.model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_model_is_recognised_and_another_refused(
    dtype: torch.dtype, tmp_path: Path, build_tiny: Callable[[int], Any]
) -> None:
    Reference(build_tiny(0).to(dtype)).save(tmp_path)
    Reference(build_tiny(0).to(dtype)).check(tmp_path)
    other = build_tiny(0).to(dtype)
    with torch.no_grad():
        next(other.parameters())[0, 0] += 0.5
    with pytest.raises(CheckpointError, match=r"model\.name is not the model") as caught:
        Reference(other).check(tmp_path)
    assert "Restore that model" in caught.value.hint


def test_a_checkpoint_of_a_run_that_had_none_is_accepted(tmp_path: Path, model: Any) -> None:
    Reference(model).check(tmp_path)
