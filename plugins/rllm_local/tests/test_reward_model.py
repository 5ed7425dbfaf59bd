"""The reward `model` gives the scores of transformers' own pipeline."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, pipeline

from rllm_core.contracts.reward import Rollout, Score
from rllm_core.data.messages import Response
from rllm_core.errors import ConfigError
from rllm_local import tiny
from rllm_local.model import load_model
from rllm_local.plugin import rllm_rewards
from rllm_local.reward_model import RewardModel
from rllm_local.scoring_models import RewardModelParams
from rllm_local.settings import ModelSection

WORDS = ["7", "I think 12", "", "no, 3!", "the answer is 42 or 43"]


def write(directory: Path, kind: Any = LlamaForSequenceClassification, **changes: Any) -> Path:
    """Write a small model with random weights, and the tokenizer of `tiny`."""
    tokenizer = tiny.build_tokenizer()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    settings = {"vocab_size": len(tokenizer), "num_labels": 1, "max_position_embeddings": 256, **sizes, **changes}
    config = LlamaConfig(pad_token_id=tokenizer.pad_token_id, **settings)
    torch.manual_seed(0)
    kind(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def rollout(text: str) -> Rollout:
    messages = [{"role": "user", "content": "a number"}, {"role": "assistant", "content": text}]
    return Rollout(data={}, messages=messages, response=Response(text=text, content=text), response_tokens=1)


def scores(directory: Path, texts: list[str], **options: Any) -> list[Score]:
    reward = RewardModel(RewardModelParams(path=str(directory), device="cpu", **options))

    async def score_all() -> list[Score]:
        return await asyncio.gather(*(reward(rollout(text)) for text in texts))

    return asyncio.run(score_all())


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_scores_equal_the_pipeline_of_transformers(tmp_path: Path, batch_size: int) -> None:
    directory = write(tmp_path)
    classify = pipeline("text-classification", model=str(directory), function_to_apply="none", device="cpu")
    texts = [classify.tokenizer.apply_chat_template(rollout(text).messages, tokenize=False) for text in WORDS]
    # The template has written the start of the text.
    expected = [classify(text, add_special_tokens=False)[0]["score"] for text in texts]

    assert [each.value for each in scores(directory, WORDS, batch_size=batch_size)] == pytest.approx(expected, abs=1e-6)


def test_single_rows_ignore_other_calls(tmp_path: Path) -> None:
    directory = write(tmp_path)

    assert scores(directory, WORDS) == [scores(directory, [text])[0] for text in WORDS]


def test_failed_pass_and_cancelled_call_fail_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward = RewardModel(RewardModelParams(path=str(write(tmp_path)), device="cpu"))
    score, failed = reward.score, reward.encode(rollout("7").messages)

    def fail_once(rows: Any) -> list[float]:
        if rows == [failed]:
            raise MemoryError("no memory")
        return score(rows)

    monkeypatch.setattr(reward, "score", fail_once)

    async def score_all() -> list[Any]:
        calls = [asyncio.ensure_future(reward(rollout(text))) for text in ("7", "8", "9", "10")]
        await asyncio.sleep(0)
        calls[1].cancel()
        async with asyncio.timeout(60):
            return await asyncio.gather(*calls, return_exceptions=True)

    failure, cancelled, *others = asyncio.run(score_all())

    assert str(failure) == "the reward model failed: no memory"
    assert isinstance(cancelled, asyncio.CancelledError)
    assert all(isinstance(each, Score) and each.value is not None for each in others)


def test_too_long_conversation_has_no_reward(tmp_path: Path) -> None:
    short, long = scores(write(tmp_path, max_position_embeddings=64), ["7", "7 " * 200])

    assert short.value is not None
    assert long.value is None
    assert "the reward model reads 64" in long.feedback


@pytest.mark.parametrize(
    ("kind", "changes", "code"),
    [
        (LlamaForCausalLM, {}, "untrained-reward-model"),
        (LlamaForSequenceClassification, {"num_labels": 2}, "untrained-reward-model"),
    ],
)
def test_models_without_a_score_are_errors(tmp_path: Path, kind: Any, changes: dict[str, Any], code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RewardModel(RewardModelParams(path=str(write(tmp_path, kind, **changes)), device="cpu"))

    assert caught.value.code == code


def load_to_train(name: str | Path, seed: int = 0) -> Any:
    return load_model(ModelSection(name=str(name), device="cpu"), seed, classifier=True).model


def test_new_head_depends_only_on_the_seed(tmp_path: Path) -> None:
    directory = write(tmp_path, LlamaForCausalLM)
    heads = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(heads))
        heads.append(load_to_train(directory, seed).score.weight)

    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert heads[0].shape == (1, 32)


def test_training_starts_from_a_reward_model(tmp_path: Path) -> None:
    directory = write(tmp_path)
    saved = LlamaForSequenceClassification.from_pretrained(directory).state_dict()

    assert all(torch.equal(weights, saved[name]) for name, weights in load_to_train(directory).state_dict().items())


def test_classifier_with_two_outputs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_to_train(write(tmp_path, num_labels=2))

    assert caught.value.code == "model-not-loadable"
    assert "score.weight" in caught.value.message


def test_training_without_padding_token_is_an_error(tmp_path: Path) -> None:
    directory = write(tmp_path, LlamaForCausalLM)
    for name in ("config.json", "tokenizer_config.json"):
        file = directory / name
        values = json.loads(file.read_text())
        file.write_text(json.dumps({key: each for key, each in values.items() if not key.startswith("pad_token")}))
    with pytest.raises(ConfigError) as caught:
        load_to_train(directory)

    assert caught.value.code == "no-padding-token"


def test_missing_path_is_found_before_the_run(tmp_path: Path) -> None:
    (spec,) = rllm_rewards()
    assert spec.check is not None

    with pytest.raises(ConfigError) as caught:
        spec.check(RewardModelParams(path=str(tmp_path / "none")))

    assert caught.value.code == "model-not-loadable"
    assert "reward model: path=" in caught.value.message


def test_changed_weights_are_seen_at_resume(tmp_path: Path) -> None:
    (spec,) = rllm_rewards()
    assert spec.sources is not None
    directory = write(tmp_path)
    params = RewardModelParams(path=str(directory))
    before = spec.sources(params)
    write(directory, vocab_size=300)

    assert before != spec.sources(params)
