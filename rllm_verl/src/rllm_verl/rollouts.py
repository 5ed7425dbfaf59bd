"""The rollout engine: verl's servers with the most recently synced weights.

A server stops a response when new weights arrive. The engine then requests the rest of the response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.renderer import Renderer
from rllm_core.data.version_spans import VersionSpan
from rllm_core.errors import BackendError, RolloutError
from rllm_core.rollout.prompts import checked_prompt
from rllm_core.seeding import derive_seed
from rllm_verl.calls import as_backend_error, timeout_error
from rllm_verl.processes import Process

if TYPE_CHECKING:
    from verl.workers.rollout.llm_server import LLMServerClient

SAMPLING = "sampling rollouts"
ROLLOUT_DEADLINE = "deadlines.rollout"


class VerlEngine:
    """A `RolloutEngine` on verl's rollout servers. All calls of a session use the same server, which has its cache."""

    def __init__(
        self,
        client: LLMServerClient,
        renderer: Renderer,
        *,
        max_context: int,
        logprobs_before_truncation: bool,
        addresses: Sequence[str],
        seconds: float,
        processes: Sequence[Process],
        wake: Callable[[], Awaitable[None]],
    ) -> None:
        """Create the engine.

        Args:
            client: distributes calls to servers.
            renderer: the model's renderer.
            max_context: maximum number of tokens in a conversation.
            logprobs_before_truncation: see `rllm_verl.logprobs.has_untruncated_logprobs`. If False, log-probs are
                reported as unknown.
            addresses: host:port of each server's OpenAI-compatible API, for other programs.
            seconds: time limit of one call.
            processes: the server processes, for errors.
            wake: sends the weights to the servers again if they freed them for an update.
        """
        self.renderer = renderer
        self.max_context = max_context
        self._logprobs_before_truncation = logprobs_before_truncation
        self.addresses = tuple(addresses)
        self._client = client
        self._seconds = seconds
        self._processes = processes
        self._wake = wake

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """Sample a completion; see `RolloutEngine.generate`.

        Raises:
            BackendError: a server has stopped, failed, or did not answer in time.
        """
        prompt, room = checked_prompt(prompt_ids, sampling, self.max_context)
        await self._wake()
        sampling_params = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "max_tokens": room,
            "seed": sampling.seed,
            "logprobs": True,
            "stop_token_ids": sorted(self.renderer.stop_ids),
        }

        async def ask(tokens: list[int], params: Mapping[str, Any]) -> Any:
            return await self._client.generate(session, prompt_ids=tokens, sampling_params=params)

        try:
            response = await asyncio.wait_for(
                sample_full_response(ask, prompt.tolist(), sampling_params), self._seconds
            )
        except TimeoutError:
            raise timeout_error(SAMPLING, self._seconds, ROLLOUT_DEADLINE, self._processes) from None
        except Exception as error:
            backend_error = as_backend_error(error, SAMPLING, self._processes)
            if backend_error is error:
                raise
            raise backend_error from error
        return self._completion(response)

    async def end_session(self, session: str) -> None:
        """Do nothing. Servers remove the conversation that has been idle for the longest time."""

    def _completion(self, response: FullResponse) -> Completion:
        tokens, logprobs = np.asarray(response.token_ids, np.int32), np.asarray(response.log_probs, np.float32)
        return Completion(
            token_ids=tokens,
            logprobs=logprobs if self._logprobs_before_truncation else np.full_like(logprobs, np.nan),
            finish_reason="stop" if int(tokens[-1]) in self.renderer.stop_ids else "length",
            weight_version=min(span.version for span in response.spans),
            version_spans=tuple(response.spans) if len(response.spans) > 1 else (),
        )


CUT_OFF = ("aborted", "abort")
Ask = Callable[[list[int], Mapping[str, Any]], Awaitable[Any]]
"""A function that lets a server continue a prompt with sampling parameters and returns verl's `TokenOutput`."""


@dataclass
class FullResponse:
    """The response to one prompt, sampled by one or several weight versions."""

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    """One log-prob per token."""
    spans: list[VersionSpan] = field(default_factory=list)
    """Consecutive tokens by weight version, in order. Adjacent spans have different versions."""

    def add(self, part: Any) -> None:
        """Append a server's `TokenOutput`. One weight version has sampled all of it.

        Raises:
            BackendError: the output has tokens without log-probs.
        """
        tokens = list(part.token_ids)
        if not tokens:
            return
        if part.log_probs is None or len(part.log_probs) != len(tokens):
            raise BackendError(
                "missing-logprobs",
                "A rollout server returned a response without log-probs.",
                "Set actor_rollout_ref.rollout.calculate_log_probs=true.",
            )
        version = int(part.extra_fields.get("global_steps") or 0)
        before = self.spans.pop().tokens if self.spans and self.spans[-1].version == version else 0
        self.spans.append(VersionSpan(version, before + len(tokens)))
        self.token_ids += tokens
        self.log_probs += part.log_probs


async def sample_full_response(ask: Ask, prompt: list[int], params: Mapping[str, Any]) -> FullResponse:
    """Sample a response to its end.

    A server accepts no request until it has the new weights, so a second request waits for them.

    Args:
        ask: see `Ask`.
        prompt: the prompt's tokens.
        params: sampling parameters, including ``max_tokens`` and ``seed``.

    Raises:
        RolloutError: a server ended the response before its first token.
        BackendError: a server returned tokens without log-probs.
    """
    response = FullResponse()
    while True:
        done = len(response.token_ids)
        # Use a new seed for the rest. The first seed would draw the same random numbers again.
        seed = derive_seed(params["seed"], "rest", done) if done else params["seed"]
        part = await ask(
            [*prompt, *response.token_ids], {**params, "max_tokens": params["max_tokens"] - done, "seed": seed}
        )
        response.add(part)
        if part.stop_reason not in CUT_OFF or len(response.token_ids) >= params["max_tokens"]:
            break
    if not response.token_ids:
        raise RolloutError(
            "empty-response",
            "A rollout server ended a response before its first token.",
            "If this happens again, check the server's log.",
        )
    return response
