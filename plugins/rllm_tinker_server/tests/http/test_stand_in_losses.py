"""`--stand-in-losses`: the loss stable_reinforce, with the real client and a real model, as the cookbook uses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tinker
from tinker import types
from tinker_in_process import tiny_server

from rllm_tinker_server.limits import TinkerLimits

from .conftest import DEADLINE, KEY, Server

PROMPT = [5, 6, 7, 8]
COUNT = 4


def datum(sequence: Any, advantage: float, old_shift: float = 0.0) -> types.Datum:
    """A prompt and a sampled response. `old_shift` is added to the sampler's log-probs."""
    tokens, logprobs = sequence.tokens, sequence.logprobs
    before = len(PROMPT) - 1
    made = types.Datum(
        model_input=types.ModelInput.from_ints([*PROMPT, *tokens[:-1]]),
        loss_fn_inputs={
            "target_tokens": [0] * before + tokens,
            "logprobs": [0.0] * before + [each + old_shift for each in logprobs],
            "advantages": [0.0] * before + [advantage] * len(tokens),
        },
    )
    sequence_id = sequence.sequence_id
    return made.with_provenance(
        model_input=[
            types.PromptProvenanceSpan(sequence_id=sequence_id, length=len(PROMPT)),
            types.SampledProvenanceSpan(sequence_id=sequence_id, length=len(tokens) - 1),
        ],
        loss_fn_inputs=[
            types.PromptProvenanceSpan(sequence_id=sequence_id, offset=1, length=before),
            types.SampledProvenanceSpan(sequence_id=sequence_id, length=len(tokens)),
        ],
    )


def test_the_loop_of_the_cookbook_runs_and_the_metrics_name_the_stand_in(tmp_path: Path) -> None:
    with tiny_server(tmp_path, limits=TinkerLimits(stand_in_losses=True)) as running:
        client = tinker.ServiceClient(base_url=running.url, api_key=KEY)
        trainer = client.create_lora_training_client(base_model="tiny", rank=4).result()
        sampler = trainer.save_weights_and_get_sampling_client(record_stability_info=True).result(DEADLINE)
        params = types.SamplingParams(max_tokens=6, seed=1)
        sampled = sampler.sample(types.ModelInput.from_ints(PROMPT), COUNT, params).result(DEADLINE)
        data = [datum(sequence, 0.5) for sequence in sampled.sequences]
        result = trainer.forward_backward(data, "stable_reinforce").result(DEADLINE)
        # All weights are 1, because the weights that sampled are the weights that are trained.
        total = sum(0.5 * -sum(sequence.logprobs) for sequence in sampled.sequences)
        assert result.metrics["loss:sum"] == pytest.approx(total, rel=1e-4)
        assert result.metrics["stand_in_loss:max"] == 1.0
        assert trainer.optim_step(types.AdamParams(learning_rate=1e-3)).result(DEADLINE).metrics["grad_norm"] > 0

        # Without advantages only the KL term is left: 1/2 * 0.3^2 for each sampled token, and nothing for the prompt.
        shifted = [datum(sequence, 0.0, old_shift=0.3) for sequence in sampled.sequences]
        base = client.create_lora_training_client(base_model="tiny", rank=4).result()
        result = base.forward(shifted, "stable_reinforce", {"kl_coeff": 2.0}).result(DEADLINE)
        tokens = sum(len(sequence.tokens) for sequence in sampled.sequences)
        assert result.metrics["loss:sum"] == pytest.approx(2.0 * 0.5 * 0.09 * tokens, rel=1e-2)

        bare = types.Datum(model_input=data[0].model_input, loss_fn_inputs=data[0].loss_fn_inputs)
        with pytest.raises(tinker.RequestFailedError, match=r"Datum 0: .*with_provenance"):
            base.forward([bare], "stable_reinforce").result(DEADLINE)
        client.close("success").result(DEADLINE)


def test_without_the_flag_the_refusal_names_it(server: Server, connect: Callable[..., Any]) -> None:
    trainer = connect(server).create_lora_training_client(base_model="fake").result()
    one = types.Datum(model_input=types.ModelInput.from_ints([1]), loss_fn_inputs={"target_tokens": [1]})
    with pytest.raises(tinker.RequestFailedError, match="--stand-in-losses"):
        trainer.forward_backward([one], "stable_reinforce").result(DEADLINE)
    sampler = trainer.save_weights_and_get_sampling_client(record_stability_info=True).result(DEADLINE)
    with pytest.raises(tinker.BadRequestError, match="--stand-in-losses"):
        sampler.sample(types.ModelInput.from_ints([1]), 1, types.SamplingParams(max_tokens=1)).result(DEADLINE)
