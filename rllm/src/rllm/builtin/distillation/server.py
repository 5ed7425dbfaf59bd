"""The teacher `server`: prompt log-probs from a server of OpenAI's API with vLLM's field `prompt_logprobs`."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rllm.builtin.tasks.chat_client import ChatClient, ChatError
from rllm_core.contracts.params import Params
from rllm_core.contracts.teacher import TeacherSetup
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import BackendError, ConfigError


class ServerParams(Params):
    """Options of the teacher ``server``."""

    url: str = Field(pattern="^https?://.")
    """Address of the server, with `/v1`."""
    model: str | None = None
    """Name of the model at the server. null: the only model that it lists."""
    api_key_env: str = "RLLM_API_KEY"
    """Environment variable with the API key. It is sent if it is set, and never stored."""
    max_concurrency: int = Field(32, gt=0)
    """Maximum number of concurrent requests."""
    timeout: float = Field(600.0, gt=0)
    """Seconds that one request may take."""
    retries: int = Field(5, ge=0)
    """Number of retries after status 429 or 5xx, or a lost connection."""


SECONDS_TO_WAIT = 1.0
"""Wait before the first retry. It doubles for each later retry."""


class ServerTeacher:
    """Sends the token ids of each row as a prompt, and reads the log-prob of each of its tokens."""

    def __init__(self, params: ServerParams, setup: TeacherSetup) -> None:
        if setup.temperature != 1:
            raise ConfigError(
                "teacher-temperature",
                f"sampling.train.temperature={setup.temperature:g}, and teacher `server` scores at temperature 1.",
                "Set sampling.train.temperature=1, or choose teacher `model`.",
            )
        self._params = params
        self._chat = ChatClient(
            url=params.url.rstrip("/"),
            api_key_env=params.api_key_env,
            timeout=params.timeout,
            retries=params.retries,
            backoff=SECONDS_TO_WAIT,
        )

    async def logprobs(self, batch: TokenBatch) -> NDArray[np.float32]:
        """Return log-probs, (n_token,), of all tokens. The first token of a row gets 0.

        Raises:
            BackendError: the server cannot be reached, or does not return a log-prob for each token.
        """
        found = await self._score(batch, 0)
        logprobs = [entry[0][1] if entry else 0.0 for entries in found for entry in entries]
        return np.array(logprobs, np.float32)

    async def top_logprobs(self, batch: TokenBatch, k: int | None) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return ids and log-probs, (n_sampled, k) each, of the k likeliest tokens at each sampled token.

        Raises:
            BackendError: as `logprobs`, or the server returns fewer tokens.
        """
        assert k is not None, "the plan has k"
        found = await self._score(batch, k)
        flat = [entry for entries in found for entry in entries]
        rows = [flat[place][:k] for place in np.flatnonzero(batch.loss_mask)]
        if any(len(row) < k for row in rows):
            raise self._failure(
                "bad-service-answer",
                f"it returned {min(map(len, rows))} tokens for a position, and option k is {k}",
                "Set option k of stage topk_kl lower, or start the server with `--max-logprobs` of at least k.",
            )
        table = np.array(rows, np.float64).reshape(-1, k, 2)
        return table[..., 0].astype(np.int32), table[..., 1].astype(np.float32)

    async def _score(self, batch: TokenBatch, count: int) -> list[list[list[tuple[int, float]]]]:
        """Return ids and log-probs of the tokens at each position of each row, as in `_row`."""
        slots = asyncio.Semaphore(self._params.max_concurrency)
        rows = np.split(batch.tokens, batch.row_offsets[1:-1])
        async with httpx.AsyncClient(timeout=self._params.timeout) as http:
            try:
                model = self._params.model or await self._only_model(http)
                return await asyncio.gather(*(self._row(http, slots, model, row.tolist(), count) for row in rows))
            except ChatError as error:
                raise self._failure(
                    "service-failed", f"{error}", "Check the address, the model and the API key of rllm.teacher."
                ) from error

    async def _row(
        self, http: httpx.AsyncClient, slots: asyncio.Semaphore, model: str, tokens: list[int], count: int
    ) -> list[list[tuple[int, float]]]:
        """Return ids and log-probs at each position: of the row's own token, or of the `count` likeliest tokens."""
        body = {"model": model, "prompt": tokens, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": count}
        async with slots:
            answer = await self._chat.complete(http, body, "/completions")
        try:
            entries: list[Any] = answer["choices"][0]["prompt_logprobs"]
            scored = zip(tokens[1:], entries[1:], strict=True)  # no token comes before the first
            return [[], *(_likeliest(entry) if count else [_own(token, entry)] for token, entry in scored)]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise self._failure(
                "bad-service-answer",
                f"the answer has no `prompt_logprobs` for {len(tokens)} tokens ({type(error).__name__}: {error})",
                "Use a server with vLLM's `prompt_logprobs`, and a model with the tokens of the trained model.",
            ) from error

    async def _only_model(self, http: httpx.AsyncClient) -> str:
        names = [str(each["id"]) for each in (await self._chat.models(http)).get("data") or ()]
        if len(names) != 1:
            raise self._failure(
                "model-not-found", f"it has the models {', '.join(names) or 'none'}", "Set rllm.teacher.model to one."
            )
        return names[0]

    def _failure(self, code: str, problem: str, hint: str) -> BackendError:
        return BackendError(code, f"Teacher {self._params.url}: {problem}.", hint)


def _own(token: int, entry: Any) -> tuple[int, float]:
    return token, float(entry[str(token)]["logprob"])


def _likeliest(entry: Any) -> list[tuple[int, float]]:
    """Return ids and log-probs, the likeliest first. The server adds the row's own token to the likeliest tokens."""
    found = [(int(token), float(each["logprob"])) for token, each in entry.items()]
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))
