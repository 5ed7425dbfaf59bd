"""The rollout engine: token ids to the service and back, with the log-probs of the policy that sampled."""

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
    """One sampler for each of the versions that were published last."""

    def __init__(self, *, versions: int) -> None:
        """Start with none. `versions`: how many are served at a time."""
        self._versions = versions
        self._samplers: dict[int, Sampler] = {}

    def sync_weights(self, sampler: Sampler, version: int) -> None:
        """Serve a version. Those that are too old go; requests under way keep their sampler."""
        self._samplers[version] = sampler
        for old in [each for each in self._samplers if each <= version - self._versions]:
            del self._samplers[old]

    def find(self, version: int | None) -> tuple[int, Sampler]:
        """A version and its sampler. None: the newest.

        Raises:
            RolloutError: that version is not served any more.
        """
        found = max(self._samplers) if version is None else version
        if found not in self._samplers:
            served = ", ".join(map(str, sorted(self._samplers)))
            raise RolloutError("weights-gone", f"Version {found} of the weights is not served; {served} are.")
        return found, self._samplers[found]


QUIET_TURNS = 3
"""Turns of the event loop without a new call after which the calls so far are sent."""


@dataclass(eq=False)
class _Call:
    prompt: NDArray[np.int32]
    sampling: SamplingParams
    version: int
    sampler: Sampler
    """Of that version. It is the call's until the end, whatever is published meanwhile."""
    future: asyncio.Future[Completion]

    @property
    def kind(self) -> SamplingParams:
        """What calls must share to be one request."""
        return replace(self.sampling, seed=0, weight_version=self.version)


class TinkerEngine:
    """A `RolloutEngine` on a service. All tokens of a call are of one version of the weights.

    Calls of the same moment are sent as one request where the service takes several prompts; else every call is a
    request of its own.
    """

    def __init__(
        self, renderer: Renderer, *, max_context: int, prompts_per_request: int, versions_served: int = 1
    ) -> None:
        """Make one that has nothing to sample from yet; see `sync_weights`.

        Args:
            renderer: of the model.
            max_context: most tokens of a conversation.
            prompts_per_request: how many prompts with a seed each the service takes in one request.
            versions_served: as `RunContext.versions_served`.
        """
        self.renderer = renderer
        self.max_context = max_context
        self._prompts_per_request = prompts_per_request
        self._samplers = ServedSamplers(versions=versions_served)
        self._waiting: list[_Call] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def sync_weights(self, sampler: Sampler, version: int) -> None:
        """Calls from here on sample from these weights, unless they ask for older ones that are served."""
        self._samplers.sync_weights(sampler, version)

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """See `RolloutEngine.generate`. Without a version, the newest weights at the time of the call sample.

        Raises:
            RolloutError: that version is not served any more; or as `RolloutEngine.generate`.
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
        """Nothing is kept for a conversation here; the service looks after its caches."""

    async def close(self) -> None:
        """Give up what is under way: whoever waits for an answer is cancelled."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        calls, self._waiting = self._waiting, []
        for call in calls:
            call.future.cancel()

    async def _send_waiting(self) -> None:
        """Let others call first, until none does any more; then send, one request for calls of a kind."""
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
        """Ask for the samples of some calls, and hand them out."""
        sampler, version = calls[0].sampler, calls[0].version
        _let_go_with(calls)
        prompts, seeds = [call.prompt for call in calls], [call.sampling.seed for call in calls]
        try:
            found = await sampler.sample(prompts, calls[0].sampling, sorted(self.renderer.stop_ids), seeds)
            for call, sequence in zip(calls, found, strict=True):
                if not call.future.done():
                    call.future.set_result(self._completion(sequence, version))
        except Exception as error:  # noqa: BLE001  (whoever waits for an answer must learn that none will come)
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
                "Look at the loss of the steps before: the model may have diverged.",
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
    """Cancel the task of this request once nobody waits for any of its samples: the service then stops sampling."""
    task = asyncio.current_task()
    assert task is not None

    def look(_: asyncio.Future[Completion]) -> None:
        if all(call.future.done() for call in calls):
            task.cancel()

    for call in calls:
        call.future.add_done_callback(look)
