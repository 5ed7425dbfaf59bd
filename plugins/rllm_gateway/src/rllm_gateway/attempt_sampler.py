"""What the trainer samples for one session, and keeps until the session closes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, OnTokens, RolloutEngine, SamplingParams
from rllm_core.errors import BackendError
from rllm_gateway.policy import PromptTooLongError
from rllm_gateway.stop_texts import cut_at_texts


@dataclass(frozen=True, eq=False)
class SampledCall:
    """One reply, with the prompt that the engine was given."""

    prompt_ids: NDArray[np.int32]
    """(n,) int32."""
    completion: Completion
    cut: int
    """Sampled tokens behind a stop text; they are no part of the reply."""


class SamplingContext(Protocol):
    """Of a `WorkflowContext`, what sampling needs."""

    @property
    def engine(self) -> RolloutEngine: ...
    @property
    def sampling(self) -> SamplingParams: ...
    @property
    def max_prompt_length(self) -> int: ...
    @property
    def max_response_length(self) -> int: ...


class AttemptSampler:
    """Samples for the agent of one attempt, by the rules that built-in workflows sample by."""

    def __init__(self, context: SamplingContext, name: str, *, engine_stops: bool) -> None:
        """Make one.

        Args:
            context: of the attempt.
            name: of the engine's sessions, one per branch: calls of one session take turns.
            engine_stops: whether the engine ends replies at texts; they are cut there where it does not.
        """
        self._context = context
        self._name = name
        self._engine_stops = engine_stops
        self._branches: set[str] = set()
        self.calls: dict[str, SampledCall] = {}
        """What was sampled, by call; what was sampled for a call before it was asked again, under ids of no call."""
        self._newest: dict[str, object] = {}
        """Who samples for a call now, of several that were asked to: the gateway takes the reply of the last."""
        self._given_up = count()
        self.too_long = 0
        """Prompts for which there was no room."""
        self.backend_error: BackendError | None = None
        """What samples is gone: no fault of the attempt."""

    async def sample(
        self,
        *,
        call: str,
        branch: str,
        prompt_ids: NDArray[np.int32],
        max_tokens: int,
        stop: tuple[str, ...],
        json_schema: str | None = None,
        top_logprobs: int = 0,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        """Continue a prompt; see `Policy.sample`.

        Raises:
            PromptTooLongError: the prompt exceeds ``data.max_prompt_length``, or leaves no room in the context.
            UnsupportedSamplingError: the engine has no `json_schema` or no `top_logprobs`.
            BackendError: the engine is gone.
        """
        context = self._context
        engine = context.engine
        room = engine.max_context - len(prompt_ids)
        if len(prompt_ids) > context.max_prompt_length or room < 1:
            self.too_long += 1
            longest = min(context.max_prompt_length, engine.max_context - 1)
            raise PromptTooLongError(f"a prompt of {len(prompt_ids)} tokens; this run takes {longest} at most")
        most = min(max_tokens, context.max_response_length, room)
        sampling = replace(
            context.sampling,
            max_tokens=most,
            stop=stop if self._engine_stops else (),
            json_schema=json_schema,
            top_logprobs=top_logprobs,
            # Tokens behind a stop text are no part of the reply, and only the end tells which they are.
            on_tokens=on_tokens if self._engine_stops or not stop else None,
        )
        session = f"{self._name}/{branch}"
        self._branches.add(session)
        if (before := self.calls.pop(call, None)) is not None:
            self._set_aside(call, before)
        mine = self._newest[call] = object()
        try:
            whole = await engine.generate(prompt_ids, sampling, session=session)
        except BackendError as error:
            self.backend_error = error
            raise
        finally:
            is_newest = self._newest.get(call) is mine
            if is_newest:
                del self._newest[call]
        completion = whole if self._engine_stops else cut_at_texts(whole, engine.renderer.text, stop)
        cut = len(whole.token_ids) - len(completion.token_ids)
        sampled = SampledCall(np.asarray(prompt_ids, np.int32), completion, cut)
        if is_newest:
            self.calls[call] = sampled
        else:
            self._set_aside(call, sampled)
        return completion

    def _set_aside(self, call: str, sampled: SampledCall) -> None:
        self.calls[f"{call}~{next(self._given_up)}"] = sampled

    async def close(self) -> None:
        """Free what the engine keeps for the session."""
        branches, self._branches = self._branches, set()
        for branch in sorted(branches):
            await self._context.engine.end_session(branch)
