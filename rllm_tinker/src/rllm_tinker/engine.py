"""The rollout engine: it sends token ids to the service, and returns sampled token ids with their log-probs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.renderer import Renderer
from rllm_core.errors import BackendError, RolloutError
from rllm_core.rollout.prompts import checked_prompt
from rllm_tinker.client import Sampler
from rllm_tinker.exchange import SampledSequence


class ServedSamplers:
    """Samplers for the most recently synced versions, one for each version."""

    def __init__(self, *, versions: int) -> None:
        """Start without samplers. `versions` is the maximum number of versions to keep."""
        self._versions = versions
        self._samplers: dict[int, Sampler] = {}

    def sync_weights(self, sampler: Sampler, version: int) -> None:
        """Serve a version and remove versions that are too old. Running requests keep their sampler."""
        self._samplers[version] = sampler
        for old in [each for each in self._samplers if each <= version - self._versions]:
            del self._samplers[old]

    def find(self, version: int | None) -> tuple[int, Sampler]:
        """Return a version and its sampler. None selects the latest version.

        Raises:
            RolloutError: the version is no longer served.
        """
        found = max(self._samplers) if version is None else version
        if found not in self._samplers:
            served = ", ".join(map(str, sorted(self._samplers)))
            raise RolloutError("weights-gone", f"Weight version {found} is not served. Served versions: {served}.")
        return found, self._samplers[found]


QUIET_TURNS = 3
"""The engine sends the waiting calls after this many event loop iterations without a new call."""


@dataclass(eq=False)
class _Call:
    prompt: NDArray[np.int32]
    sampling: SamplingParams
    version: int
    sampler: Sampler
    """The sampler of `version`. The call uses it to the end, even if new weights are synced."""
    future: asyncio.Future[Completion]

    @property
    def kind(self) -> SamplingParams:
        """The parameters that calls must share to be sent as one request."""
        return replace(self.sampling, seed=0, weight_version=self.version)


class TinkerEngine:
    """A `RolloutEngine` that samples from a service. One version of the weights samples all tokens of a call.

    If the service accepts several prompts in a request, concurrent calls are sent as one request. Otherwise each call
    is a separate request.
    """

    def __init__(
        self, renderer: Renderer, *, max_context: int, prompts_per_request: int, versions_served: int = 1
    ) -> None:
        """Create an engine without weights. Call `sync_weights` before `generate`.

        Args:
            renderer: the model's renderer.
            max_context: maximum number of tokens in a conversation.
            prompts_per_request: number of prompts, each with its own seed, that the service accepts in one request.
            versions_served: the same as `RunContext.versions_served`.
        """
        self.renderer = renderer
        self.max_context = max_context
        self._prompts_per_request = prompts_per_request
        self._samplers = ServedSamplers(versions=versions_served)
        self._waiting: list[_Call] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def sync_weights(self, sampler: Sampler, version: int) -> None:
        """Use these weights for new calls that do not request an older served version."""
        self._samplers.sync_weights(sampler, version)

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """Sample a completion; see `RolloutEngine.generate`. Without a version, the latest weights are used.

        Raises:
            RolloutError: the version is no longer served, or an error of `RolloutEngine.generate` occurs.
        """
        prompt, room = checked_prompt(prompt_ids, sampling, self.max_context)
        version, sampler = self._samplers.find(sampling.weight_version)
        sampling = replace(sampling, max_tokens=room)
        call = _Call(prompt, sampling, version, sampler, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if len(self._waiting) == 1:
            self._start(self._send_waiting())
        return await call.future

    async def end_session(self, session: str) -> None:
        """Do nothing. The engine stores nothing for a conversation, and the service manages its own caches."""

    async def close(self) -> None:
        """Cancel all running requests and the calls that wait for them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        calls, self._waiting = self._waiting, []
        for call in calls:
            call.future.cancel()

    async def _send_waiting(self) -> None:
        """Wait until no new calls arrive, then send the waiting calls. Calls of the same kind share a request."""
        quiet = 0
        while quiet < QUIET_TURNS:
            seen = len(self._waiting)
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._waiting) == seen else 0
        calls, self._waiting = self._waiting, []
        by_kind: dict[SamplingParams, list[_Call]] = defaultdict(list)
        for call in calls:
            by_kind[call.kind].append(call)
        for alike in by_kind.values():
            for start in range(0, len(alike), self._prompts_per_request):
                self._start(self._serve(alike[start : start + self._prompts_per_request]))

    async def _serve(self, calls: Sequence[_Call]) -> None:
        """Request samples for some calls, and set the calls' results."""
        sampler, version = calls[0].sampler, calls[0].version
        _let_go_with(calls)
        prompts, seeds = [call.prompt for call in calls], [call.sampling.seed for call in calls]
        try:
            found = await sampler.sample(prompts, calls[0].sampling, sorted(self.renderer.stop_ids), seeds)
            for call, sequence in zip(calls, found, strict=True):
                if not call.future.done():
                    call.future.set_result(self._completion(sequence, version))
        except Exception as error:  # noqa: BLE001  (the waiting calls must receive the error)
            for call in calls:
                if not call.future.done():
                    call.future.set_exception(error)
        finally:
            for call in calls:
                call.future.cancel()

    def _completion(self, sequence: SampledSequence, version: int) -> Completion:
        tokens, logprobs = sequence.tokens, sequence.logprobs
        if not len(tokens) or tokens.shape != logprobs.shape or not np.isfinite(logprobs).all():
            raise BackendError(
                "logprobs-not-finite",
                f"The service sampled {len(tokens)} tokens with {len(logprobs)} log-probs, of which "
                f"{int(np.isfinite(logprobs).sum())} are finite.",
                "Check the loss of the previous steps, because the model may have diverged.",
            )
        stopped = int(tokens[-1]) in self.renderer.stop_ids
        return Completion(
            token_ids=tokens,
            logprobs=logprobs,
            finish_reason="stop" if stopped else "length",
            weight_version=version,
        )

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _let_go_with(calls: Sequence[_Call]) -> None:
    """Cancel this request's task when none of its calls is still waiting. The service then stops sampling."""
    task = asyncio.current_task()
    assert task is not None
    waiting = len(calls)

    def look(_: asyncio.Future[Completion]) -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            task.cancel()

    for call in calls:
        call.future.add_done_callback(look)
