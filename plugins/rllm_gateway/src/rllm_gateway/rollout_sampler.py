"""Sample for one session in the trainer's process, and keep the tokens until the session closes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, OnTokens, RolloutEngine, SamplingParams, TopTokens
from rllm_core.data.types import Step
from rllm_core.data.version_spans import VersionSpan
from rllm_core.errors import BackendError
from rllm_gateway.link_policy import PolicyError


class SamplingContext(Protocol):
    """The fields of a `WorkflowContext` that sampling needs."""

    @property
    def engine(self) -> RolloutEngine: ...
    @property
    def sampling(self) -> SamplingParams: ...
    @property
    def max_prompt_length(self) -> int: ...
    @property
    def max_response_length(self) -> int: ...


class RolloutSampler:
    """Samples for the agent of one rollout, by the same rules as built-in workflows."""

    def __init__(self, context: SamplingContext, name: str, *, engine_stops: bool) -> None:
        """Make a sampler.

        Args:
            context: context of the rollout.
            name: prefix of the engine's sessions. There is one per branch, because calls of a session run one by one.
            engine_stops: True if the engine supports stop strings. Otherwise the sampler cuts responses there.
        """
        self._context = context
        self._name = name
        self._engine_stops = engine_stops
        self._branches: set[str] = set()
        self.calls: dict[str, Step] = {}
        """Call id -> sampled tokens. If a call was repeated, earlier tokens are under ids that belong to no call."""
        self.cut_tokens = 0
        """Number of sampled tokens after stop strings, which are not part of a response."""
        self._latest: dict[str, object] = {}
        """Call id -> mark of its latest request. If a call is repeated, the gateway uses only the latest response."""
        self._given_up = count()
        self.too_long = 0
        """Number of prompts that were too long."""
        self.backend_error: BackendError | None = None
        """Error of the engine. It is not a failure of the rollout."""

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
        """Continue a prompt. See `Policy.sample`.

        Raises:
            PolicyError: the prompt exceeds ``data.max_prompt_length``, or leaves no room in the context.
            UnsupportedSamplingError: the engine does not support `json_schema` or `top_logprobs`.
            BackendError: the engine has stopped.
        """
        context = self._context
        engine = context.engine
        room = engine.max_context - len(prompt_ids)
        if len(prompt_ids) > context.max_prompt_length or room < 1:
            self.too_long += 1
            longest = min(context.max_prompt_length, engine.max_context - 1)
            raise PolicyError(f"a prompt of {len(prompt_ids)} tokens; this run takes {longest} at most", "too_long")
        most = min(max_tokens, context.max_response_length, room)
        sampling = replace(
            context.sampling,
            max_tokens=most,
            stop=stop if self._engine_stops else (),
            json_schema=json_schema,
            top_logprobs=top_logprobs,
            # Tokens after a stop string are not part of the response, and they are found only at the end.
            on_tokens=on_tokens if self._engine_stops or not stop else None,
        )
        session = f"{self._name}/{branch}"
        self._branches.add(session)
        if (before := self.calls.pop(call, None)) is not None:
            self._set_aside(call, before)
        mine = self._latest[call] = object()
        try:
            whole = await engine.generate(prompt_ids, sampling, session=session)
        except BackendError as error:
            self.backend_error = error
            raise
        finally:
            is_latest = self._latest.get(call) is mine
            if is_latest:
                del self._latest[call]
        completion = whole if self._engine_stops else cut_at_texts(whole, engine.renderer.text, stop)
        self.cut_tokens += len(whole.token_ids) - len(completion.token_ids)
        sampled = step_of(prompt_ids, completion)
        if is_latest:
            self.calls[call] = sampled
        else:
            self._set_aside(call, sampled)
        return completion

    def _set_aside(self, call: str, sampled: Step) -> None:
        self.calls[f"{call}~{next(self._given_up)}"] = sampled

    async def close(self) -> None:
        """End the engine's sessions, so that it frees their cache."""
        branches, self._branches = self._branches, set()
        for branch in sorted(branches):
            await self._context.engine.end_session(branch)


def step_of(prompt_ids: NDArray[np.int32], completion: Completion) -> Step:
    """Return a call as a step of a trajectory, without its text."""
    return Step(
        prompt_ids,
        completion.token_ids,
        completion.logprobs,
        weight_version=completion.weight_version,
        version_spans=completion.version_spans,
        info={"finish_reason": completion.finish_reason},
    )


def cut_at_texts(
    completion: Completion, text_of: Callable[[NDArray[np.int32]], str], stop: tuple[str, ...]
) -> Completion:
    """Cut a response after the first token at which its text contains a stop string. Unchanged if it contains none."""
    ids = completion.token_ids
    if not stop or not _contains(text_of(ids), stop):
        return completion
    # The text grows with the number of tokens, so a binary search finds the first token with a stop string.
    low, high = 1, len(ids)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _contains(text_of(ids[:middle]), stop) else (middle + 1, high)
    spans, top = first_spans(completion.version_spans, low), completion.top
    return Completion(
        token_ids=ids[:low],
        logprobs=completion.logprobs[:low],
        finish_reason="stop",
        weight_version=min((span.version for span in spans), default=completion.weight_version),
        version_spans=spans,
        top=None if top is None else TopTokens(top.ids[:low], top.logprobs[:low]),
    )


def first_spans(spans: Sequence[VersionSpan], tokens: int) -> tuple[VersionSpan, ...]:
    """Return the version spans that cover the first `tokens` tokens."""
    kept: list[VersionSpan] = []
    for span in spans:
        if tokens > 0:
            kept.append(VersionSpan(span.version, min(span.tokens, tokens)))
        tokens -= span.tokens
    return tuple(kept)


def _contains(text: str, stop: tuple[str, ...]) -> bool:
    return any(each in text for each in stop)
