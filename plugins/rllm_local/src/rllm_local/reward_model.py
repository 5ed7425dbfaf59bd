"""The reward `model`: a sequence classifier of transformers that scores conversations in this process."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import torch

from rllm_backend_kit.model_files import longest_context, silence_transformers
from rllm_core.contracts.reward import Rollout, Score
from rllm_core.data.messages import Message
from rllm_core.errors import ConfigError
from rllm_local.model import find_device
from rllm_local.model_name import directory_of
from rllm_local.scoring_models import RewardModelParams, errors_of_reward_model


class RewardModel:
    """Reward from a model's only output for the whole conversation, written by the model's own chat template.

    Calls that wait at the same time share a forward pass of up to `batch_size` conversations.
    """

    def __init__(self, params: RewardModelParams) -> None:
        """Load the model and its tokenizer.

        Raises:
            ConfigError: it is no sequence classifier with one trained output, or it has no chat template.
        """
        self._params = params
        with errors_of_reward_model():
            self._model, self._tokenizer = _load(params)
        self._longest = longest_context(self._model.config.get_text_config(), self._tokenizer.model_max_length)
        self._waiting: list[tuple[list[int], asyncio.Future[float]]] = []
        self._scoring: asyncio.Task[None] | None = None

    async def __call__(self, rollout: Rollout) -> Score:
        tokens = self.encode(rollout.messages)
        if len(tokens) > self._longest:
            why = f"the conversation has {len(tokens)} tokens, and the reward model reads {self._longest}"
            return Score(value=None, feedback=why)
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append((tokens, future))
        if self._scoring is None or self._scoring.done():
            # Its own task, because the rollout of this call may be cancelled.
            self._scoring = asyncio.create_task(self._score_waiting())
        value = await future
        if not math.isfinite(value):
            return Score(value=None, feedback=f"the reward model returned {value}")
        return Score(value=value)

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of a conversation, without a start of a next message."""
        tokens: list[int] = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=True, return_dict=False
        )
        return tokens

    @torch.inference_mode()
    def score(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """Return one score per row of tokens. Rows are padded on the right."""
        longest = max(map(len, rows))
        padding = self._model.config.get_text_config().pad_token_id or 0
        ids = torch.full((len(rows), longest), padding)
        mask = torch.zeros((len(rows), longest), dtype=torch.long)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
            mask[index, : len(row)] = 1
        device = self._model.device
        logits = self._model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
        scores: list[float] = logits[:, 0].float().tolist()
        return scores

    async def _score_waiting(self) -> None:
        """Score all waiting conversations. A failed pass fails only its own conversations."""
        while self._waiting:
            batch = self._waiting[: self._params.batch_size]
            del self._waiting[: len(batch)]
            try:
                results: Sequence[float | Exception] = await asyncio.to_thread(self.score, [row for row, _ in batch])
            except Exception as error:  # noqa: BLE001  (of torch; each waiting call reports it)
                results = [RuntimeError(f"the reward model failed: {error}")] * len(batch)
            for (_, future), result in zip(batch, results, strict=True):
                if future.done():  # Its rollout was cancelled.
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)


def _load(params: RewardModelParams) -> tuple[Any, Any]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    silence_transformers()
    name = params.path
    source = directory_of(name) or name
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        model, found = AutoModelForSequenceClassification.from_pretrained(
            source, dtype=getattr(torch, params.dtype), output_loading_info=True
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            "model-not-loadable",
            f"model.name={name!r} is no sequence classifier that transformers can load: {str(error).splitlines()[0]}",
            "Use the directory or hub id of a reward model.",
        ) from error
    if missing := sorted(found["missing_keys"]):
        raise ConfigError(
            "untrained-reward-model",
            f"model.name={name!r} has no weights {', '.join(missing)}, so its scores would be random.",
            "Use a reward model, which has been trained as a sequence classifier. A chat model is none.",
        )
    if model.config.num_labels != 1:
        raise ConfigError(
            "untrained-reward-model",
            f"model.name={name!r} has {model.config.num_labels} outputs, and a reward model has one.",
            "Use a reward model with num_labels=1.",
        )
    if tokenizer.chat_template is None:
        raise ConfigError(
            "no-chat-template",
            f"model.name={name!r}: its tokenizer has no chat template.",
            "Set chat_template in its tokenizer_config.json, as in the reward model's training.",
        )
    text = model.config.get_text_config()
    if text.pad_token_id is None:
        text.pad_token_id = tokenizer.pad_token_id
    if text.pad_token_id is None and params.batch_size > 1:
        raise ConfigError(
            "no-padding-token",
            f"model.name={name!r} has no padding token, so a batch cannot contain rows of different lengths.",
            "Set batch_size: 1, or pad_token_id in its config.json.",
        )
    return model.eval().to(find_device(params.device)), tokenizer
