"""An exported model samples what the run's own validation sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rllm.cli.main import main
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_local.engine import LocalEngine

RUN = "runs/rllm-training/guess-1"
QUIET = ("rllm.trainer.val_before_train=false", "rllm.trainer.test_freq=2", "rllm.trainer.logger=[]")
SIZES = ("rllm.trainer.total_batches=2", "rllm.rollout.n=4", "rllm.rollout.n_val=4")
AS_TRAINED = ("rllm.env.env_args.prompt=guess", "data.max_response_length=1")
"""Settings of the environment for the model `tiny`, which an exported model does not get."""
Sampled = dict[tuple[bytes, int], tuple[list[int], list[float]]]


@pytest.fixture
def responses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sampled:
    """Tokens and log-probs of all later responses, by prompt and seed."""
    monkeypatch.chdir(tmp_path)
    found: Sampled = {}
    generate = LocalEngine.generate

    async def record_response(self: Any, prompt: Any, sampling: SamplingParams, **options: Any) -> Completion:
        done = await generate(self, prompt, sampling, **options)
        found[np.asarray(prompt, np.int32).tobytes(), sampling.seed] = done.token_ids.tolist(), done.logprobs.tolist()
        return done

    monkeypatch.setattr(LocalEngine, "generate", record_response)
    return found


def train_and_evaluate(responses: Sampled, form: str, *settings: str) -> tuple[Sampled, Sampled]:
    """Return the responses of a run, and those of an evaluation of its exported model."""
    assert main(["train", "guess", *SIZES, *QUIET, "training.learning_rate=0.003", *settings]) == 0
    of_run = dict(responses)
    responses.clear()
    assert main(["export", RUN, "--to", form, "--output", "model"]) == 0
    assert main(["eval", "guess", "--model", "model", *AS_TRAINED, "rllm.rollout.n_val=4"]) == 0
    assert len(responses) > 100
    return of_run, responses


@pytest.mark.smoke
def test_evaluation_repeats_the_validation_of_the_run(responses: Sampled) -> None:
    of_run, evaluated = train_and_evaluate(responses, "hf")
    assert evaluated == {key: of_run.get(key) for key in evaluated}


@pytest.mark.smoke
def test_a_merged_adapter_repeats_it_up_to_rounding(responses: Sampled) -> None:
    """The sums of a merged layer are rounded differently, which can change a token."""
    of_run, evaluated = train_and_evaluate(responses, "merged", "model.lora_rank=4")
    same = [key for key in evaluated if key in of_run and evaluated[key][0] == of_run[key][0]]
    assert len(same) > 0.95 * len(evaluated)
    for key in same:
        np.testing.assert_allclose(evaluated[key][1], of_run[key][1], atol=1e-5)
