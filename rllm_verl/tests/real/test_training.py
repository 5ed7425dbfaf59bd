"""vLLM behind verl, as a user runs it: the servers sample with the trainer's weights of every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from expecting import check_printed

LARGE_STEPS = ("actor_rollout_ref.actor.optim.lr=0.01", "rllm.algorithm.entropy.coeff=0.1")
"""Weights of the step before are far from those of a step then, whoever wins."""
ROUNDING = 1
"""The verdict that a server has the trained weights, as a metric."""
LORA = "actor_rollout_ref.model.lora_rank=8"
MERGED = "actor_rollout_ref.model.lora.merge=true"
APART = "actor_rollout_ref.rollout.nnodes=1"


@pytest.mark.parametrize(
    ("words", "closest"),
    [
        pytest.param((), 1e-4, id="all weights"),
        # verl rounds merged weights to bfloat16 on their way to the servers.
        pytest.param((LORA, MERGED), 2e-2, id="LoRA merged"),
        pytest.param((APART,), 1e-4, id="a server on its own GPU"),
    ],
)
def test_responses_use_the_weights_of_their_step(
    train: Callable[..., Any], words: tuple[str, ...], closest: float
) -> None:
    done = train("rllm.trainer.total_batches=3", "rllm.trainer.test_freq=-1", *LARGE_STEPS, *words)
    assert done.returned == 0, done.said
    assert [step["train/weight_version"] for step in done.steps] == [1, 2, 3]
    assert min(step["actor/grad_norm"] for step in done.steps) > 0, "the weights must have changed"
    assert max(step["actor/rollout_logprob_difference"] for step in done.steps) < closest
    assert [step["weights/verdict"] for step in done.steps if "weights/verdict" in step] == [ROUNDING] * 2, done.said
    assert not done.left


def test_adapters_are_refused_before_anything_starts(train: Callable[..., Any]) -> None:
    """verl 0.9.1 asks vLLM 0.31 for a method that is gone, and would wait until `deadlines.sync_weights`."""
    done = train(LORA)
    assert done.returned == 2, done.said
    check_printed(" ".join(done.said.split()), "wrong-version", "verl 0.9.1", "vLLM 0.24.0")
    assert MERGED in "".join(done.said.split())
    assert not done.steps


def test_separate_server_samples_ahead_with_latest_weights(train: Callable[..., Any]) -> None:
    ahead = ("rllm.async_training.enable=true", "rllm.async_training.staleness_threshold=1")
    latest = "rllm.async_training.partial_rollout=true"
    done = train("rllm.trainer.total_batches=4", "rllm.trainer.test_freq=-1", *LARGE_STEPS, *ahead, latest, APART)
    assert done.returned == 0, done.said
    stale = [step["staleness/max"] for step in done.steps]
    assert (len(stale), stale[0], max(stale)) == (4, 0, 1)
    assert done.steps[0]["actor/rollout_logprob_difference"] < 1e-4
    assert not done.left
