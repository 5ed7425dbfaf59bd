"""The rollout engine: verl's servers with the most recently synced weights."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.renderer import Renderer
from rllm_core.rollout.prompts import checked_prompt
from rllm_verl.failures import as_backend_error, overdue
from rllm_verl.processes import Process
from rllm_verl.whole_response import WholeResponse, whole_response

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
            logprobs_before_truncation: see `rllm_verl.logprobs.before_truncation`. If False, log-probs are reported as
                unknown.
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
        asked = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "max_tokens": room,
            "seed": sampling.seed,
            "logprobs": True,
            "stop_token_ids": sorted(self.renderer.stop_ids),
        }

        async def ask(tokens: list[int], sampling_params: Mapping[str, Any]) -> Any:
            return await self._client.generate(session, prompt_ids=tokens, sampling_params=sampling_params)

        try:
            response = await asyncio.wait_for(whole_response(ask, prompt.tolist(), asked), self._seconds)
        except TimeoutError:
            raise overdue(SAMPLING, self._seconds, ROLLOUT_DEADLINE, self._processes) from None
        except Exception as error:
            told = as_backend_error(error, SAMPLING, self._processes)
            if told is error:
                raise
            raise told from error
        return self._completion(response)

    async def end_session(self, session: str) -> None:
        """Do nothing. Servers remove the conversation that has been idle for the longest time."""

    def _completion(self, response: WholeResponse) -> Completion:
        tokens, logprobs = np.asarray(response.token_ids, np.int32), np.asarray(response.log_probs, np.float32)
        return Completion(
            token_ids=tokens,
            logprobs=logprobs if self._logprobs_before_truncation else np.full_like(logprobs, np.nan),
            finish_reason="stop" if int(tokens[-1]) in self.renderer.stop_ids else "length",
            weight_version=min(span.version for span in response.spans),
            version_spans=tuple(response.spans) if len(response.spans) > 1 else (),
        )
