"""The teacher `model`: a second model in this process that scores the sampled tokens."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.teacher import TeacherSetup
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import ConfigError
from rllm_core.rollout.template_renderer import token_texts
from rllm_core.seeding import derive_seed
from rllm_local.columns import ColumnFiller
from rllm_local.model import load_model
from rllm_local.scoring_models import TeacherModelParams, rename_key_in_errors


class ModelTeacher:
    """Scores tokens with a frozen model, at the temperature of the rollouts, as the trained model is scored.

    The run's seed gives `tiny` the same random weights as to the trained model. Many models have more rows of weights
    than tokens. This padding is removed, so that the vocabulary of all models with the same tokenizer has one size.
    """

    def __init__(self, params: TeacherModelParams, setup: TeacherSetup) -> None:
        self._path = params.path
        self._renderer = setup.renderer
        with rename_key_in_errors():
            self._loaded = load_model(params.section, derive_seed(setup.seed, "model"))
        rows = self._loaded.model.get_input_embeddings().num_embeddings
        self._size = min(rows, 1 + max(self._loaded.tokenizer.get_vocab().values()))
        if self._size < rows:
            self._loaded.model.resize_token_embeddings(self._size)
        self._filler = ColumnFiller(
            self._loaded.model,
            temperature=setup.temperature,
            max_tokens_per_microbatch=params.max_tokens_per_microbatch,
            recompute_old_logprobs=True,
        )

    async def logprobs(self, batch: TokenBatch) -> NDArray[np.float32]:
        """Return log-probs, (n_token,), of the sampled tokens. Other tokens get 0.

        Padding of the trained model's vocabulary gets the log-prob of the trained model, which has no gradient.

        Raises:
            ConfigError: the teacher has other tokens than the trained model, or a row is longer than its context.
        """
        readable = self._readable(batch)
        columns = await asyncio.to_thread(self._filler.columns, readable, frozenset({"old_logprobs"}))
        known, logprobs = readable.tokens == batch.tokens, columns["old_logprobs"]
        return logprobs if batch.old_logprobs is None else np.where(known, logprobs, batch.old_logprobs)

    async def top_logprobs(self, batch: TokenBatch, k: int | None) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return ids and log-probs, (n_sampled, k) each, of the k likeliest tokens at each sampled token.

        Without `k`, return the whole vocabulary.

        Raises:
            ConfigError: as `logprobs`.
        """
        return await asyncio.to_thread(self._filler.top_logprobs, self._readable(batch), k)

    def _readable(self, batch: TokenBatch) -> TokenBatch:
        """Return the batch with token 0 instead of tokens that are padding of the trained model's vocabulary.

        Raises:
            ConfigError: as `logprobs`.
        """
        longest, limit = int(batch.row_lengths.max(initial=0)), self._loaded.max_context
        if longest > limit:
            raise ConfigError(
                "context-too-long",
                f"A row has {longest} tokens, and the teacher {self._path!r} reads {limit}.",
                "Set data.max_prompt_length and data.max_response_length (`rllm sft`: --max-length) lower, or choose a "
                "different teacher.",
            )
        ids = np.unique(batch.tokens)
        texts = token_texts(self._loaded.tokenizer, ids[ids < self._size])
        texts += [""] * (len(ids) - len(texts))
        pairs = zip(ids, self._renderer.token_texts(ids), texts, strict=True)
        if different := [token for token, one, other in pairs if one != other]:
            raise ConfigError(
                "teacher-with-other-tokens",
                f"The teacher {self._path!r} has a different tokenizer than the trained model: token {different[0]} is "
                "not the same text.",
                "Choose a teacher of the same model family.",
            )
        return replace(batch, tokens=np.where(batch.tokens < self._size, batch.tokens, 0))
