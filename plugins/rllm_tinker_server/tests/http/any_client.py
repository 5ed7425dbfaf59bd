"""A program for any version of the client, from a new LoRA model to samples: ``python any_client.py BASE_URL MODEL``.

It prints what it got as JSON. `test_versions` runs it with that version first on the path: it imports nothing of ours.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from typing import Any

import tinker
from tinker import types

DEADLINE = 60.0
TOKENS = [4, 9, 14, 19, 24]


def datum(**inputs: list[float]) -> types.Datum:
    """Predicts each of `TOKENS` from those before it."""

    def tensor(data: list[Any], dtype: Any) -> types.TensorData:
        return types.TensorData(data=data, dtype=dtype, shape=[len(data)])

    given: dict[str, Any] = {name: tensor(values, "float32") for name, values in inputs.items()}
    return types.Datum(
        model_input=types.ModelInput.from_ints(TOKENS[:-1]),
        loss_fn_inputs={"target_tokens": tensor(TOKENS[1:], "int64"), **given},
    )


def half_of_cross_entropy(_: list[types.Datum], logprobs: list[Any]) -> tuple[Any, dict[str, float]]:
    loss = -sum(row.sum() for row in logprobs) / 2
    return loss, {"half": loss.item()}


def ready(made: Any) -> Any:
    """A client: newer versions promise one, older ones return it."""
    return made.result() if hasattr(made, "result") else made


def main(base_url: str, model: str) -> None:
    ones = [1.0] * (len(TOKENS) - 1)
    supervised, step = datum(weights=ones), types.AdamParams(learning_rate=1e-2)
    client = tinker.ServiceClient(base_url=base_url, api_key="tml-test")
    trainer = ready(client.create_lora_training_client(base_model=model, rank=8, seed=1))

    gradient = trainer.forward_backward([supervised], "cross_entropy")
    stepped = trainer.optim_step(step)
    before = gradient.result(timeout=DEADLINE)
    stepped.result(timeout=DEADLINE)
    logprobs = before.loss_fn_outputs[0]["logprobs"].tolist()

    policy = datum(logprobs=logprobs, advantages=ones)
    ppo = trainer.forward_backward([policy], "ppo").result(timeout=DEADLINE)
    trainer.optim_step(step).result(timeout=DEADLINE)

    custom = trainer.forward_backward_custom([supervised], half_of_cross_entropy).result(timeout=DEADLINE)
    trainer.optim_step(step).result(timeout=DEADLINE)
    path = trainer.save_state("three-steps").result(timeout=DEADLINE).path

    resumed = ready(client.create_training_client_from_state_with_optimizer(path))
    after = resumed.forward([supervised], "cross_entropy").result(timeout=DEADLINE)
    sampler = ready(resumed.save_weights_and_get_sampling_client())
    params = types.SamplingParams(max_tokens=4, temperature=1.0, seed=7)
    prompt = types.ModelInput.from_ints(TOKENS[:2])
    drawn = sampler.sample(prompt=prompt, num_samples=2, sampling_params=params).result(timeout=DEADLINE)
    scored = sampler.compute_logprobs(types.ModelInput.from_ints(TOKENS)).result(timeout=DEADLINE)

    found = {
        "version": version("tinker"),
        "losses": [before.metrics["loss:sum"], after.metrics["loss:sum"]],
        "ppo": ppo.metrics["loss:sum"],
        "half": custom.metrics["half"],
        "trained": after.loss_fn_outputs[0]["logprobs"].tolist(),
        "scored": scored,
        "samples": [[list(sequence.tokens), list(sequence.logprobs)] for sequence in drawn.sequences],
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
