"""A step of the server equals a step of the local backend's `Updater`: same adapter, same data, every shared loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rllm.supervised.loss import cross_entropy
from rllm_core.algorithms.loss_plugins import PpoParams
from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.loss import LossPlugin, PolicyLoss
from rllm_core.contracts.plugin import NoParams
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.updates import losses as core_losses
from rllm_estimators import losses_sequence, losses_weighted
from rllm_estimators.loss_options import CispoParams, DroParams, GspoParams
from rllm_local.settings import TrainingSection
from rllm_local.update import Updater
from rllm_tinker_server.lora import LoraModel
from rllm_tinker_server.messages import AdamStep, Example, ForwardBackward, LoraSpec

from .conftest import build_tied, make_host

SPEC = LoraSpec(rank=8, seed=1)
SETTINGS = TrainingSection(learning_rate=2e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.01, max_grad_norm=1.0)
STEP = AdamStep(learning_rate=2e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.01, grad_clip_norm=1.0)
CLIP = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.15}
SHARED: list[tuple[str, PolicyLoss, Any, dict[str, float]]] = [
    ("cross_entropy", cross_entropy, NoParams(), {}),
    ("importance_sampling", core_losses.importance_sampling, NoParams(), {}),
    ("ppo", core_losses.ppo, PpoParams(eps_clip=0.1, eps_clip_high=0.15), CLIP),
    ("cispo", losses_weighted.cispo, CispoParams(eps_clip=0.1, eps_clip_high=0.15), CLIP),
    ("gspo", losses_sequence.gspo, GspoParams(sequence_eps_clip=0.1, sequence_eps_clip_high=0.15), CLIP),
    ("dro", losses_weighted.dro, DroParams(beta=0.3), {"beta": 0.3}),
]


def _batch(model: Any, prompts: tuple[int, ...], responses: tuple[int, ...]) -> TokenBatch:
    """Random rows; their old log-probs are near those of the model, so that some ratios are clipped and some not."""
    generator = np.random.default_rng(0)
    group = TrajectoryGroup(group_id="task:agent", trajectories=[])
    for prompt, response in zip(prompts, responses, strict=True):
        tokens = generator.integers(0, 70, prompt + response)
        with torch.inference_mode():
            logits = model(input_ids=torch.from_numpy(tokens)[None], use_cache=False).logits[0, prompt - 1 : -1]
        drawn = torch.log_softmax(logits, -1)[torch.arange(response), torch.from_numpy(tokens[prompt:])].numpy()
        trajectory = Trajectory("agent", reward=0.0)
        old = (drawn + generator.normal(0, 0.15, response)).astype(np.float32)
        trajectory.add_step(tokens[:prompt].tolist(), tokens[prompt:], old)
        group.trajectories.append(trajectory)
    batch = build_batch([group])
    advantages = generator.normal(0, 1, len(batch.tokens)).astype(np.float32) * batch.loss_mask
    return batch.with_columns(advantages=advantages, old_logprobs=batch.sampling_logprobs)


def _examples(batch: TokenBatch, loss: str) -> tuple[Example, ...]:
    """Return a client's data for the batch: inputs shifted by one, and 0 for tokens that were not sampled."""
    assert batch.advantages is not None
    examples = []
    for start, end in zip(batch.row_offsets, batch.row_offsets[1:], strict=False):
        sampled = batch.loss_mask[start + 1 : end].astype(np.float32)
        columns = {
            "advantages": batch.advantages[start + 1 : end],
            "logprobs": batch.sampling_logprobs[start + 1 : end],
        }
        if loss == "cross_entropy":
            columns = {"weights": sampled}
        if loss == "gspo":
            columns["sequence_ratio_mask"] = sampled
        tokens = batch.tokens[start:end].astype(np.int64)
        examples.append(Example(tokens=tokens[:-1], targets=tokens[1:], inputs=columns))
    return tuple(examples)


@pytest.mark.parametrize(("name", "function", "params", "config"), SHARED, ids=[name for name, *_ in SHARED])
def test_steps_equal_those_of_the_local_backend(
    name: str, function: PolicyLoss, params: Any, config: dict[str, float]
) -> None:
    # The service's dro counts prompts as well; there is none but the first token here.
    prompts = (1, 1, 1, 1) if name == "dro" else (5, 1, 12, 3)
    base = build_tied().requires_grad_(False)
    batch = _batch(base, prompts, (7, 20, 3, 11))

    host = make_host(max_tokens_per_microbatch=30)
    host.create("m", SPEC)
    lora = LoraModel(base, SPEC)
    updater = Updater(lora.model, SETTINGS, total_steps=10, temperature=1.0, max_response_length=50)
    plugin: LossPlugin[Any] = LossPlugin(name=name, summary="", params=type(params), load=lambda: function)
    choice = PluginChoice(registered=Registered(plugin=plugin, distribution="tests", version="0"), params=params)
    request = ForwardBackward(loss=name, config=config, examples=_examples(batch, name))
    for step in range(3):
        plan = UpdatePlan(
            global_step=step, losses={"agent": choice}, aggregation="token-sum", entropy_coeff=0.0, seed=step
        )
        expected = updater.update(batch, plan).metrics
        metrics = host.forward_backward("m", request).metrics | host.optim_step("m", STEP)
        assert metrics["loss:sum"] == pytest.approx(expected["actor/loss"], rel=1e-4, abs=1e-4)
        assert metrics["grad_norm"] == pytest.approx(expected["actor/grad_norm"], rel=1e-4)
        for layer, factors in lora.weights().factors.items():
            ours = host.weights("m").factors[layer]
            torch.testing.assert_close(ours.down, factors.down, atol=1e-5, rtol=0)
            torch.testing.assert_close(ours.up, factors.up, atol=1e-5, rtol=0)
