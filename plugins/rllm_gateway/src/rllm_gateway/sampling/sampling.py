"""Answer one request: find its position in the session, render the prompt, sample, and store before the answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_gateway.apis.exchange import Choice, ModelRequest, PendingResponse
from rllm_gateway.apis.fields import IGNORE, RefusedError, invalid
from rllm_gateway.calls import CallRow, StoreError
from rllm_gateway.calls.rows import GROUP, NAME, count_tokens
from rllm_gateway.calls.store import RowLog
from rllm_gateway.sampling.rendering import choice_of, render
from rllm_gateway.sessions.link import TEMPERATURE, AttachedPolicy, PolicyError
from rllm_gateway.sessions.live_session import LiveSession, RequestKey


def begin(
    session: LiveSession, request: ModelRequest, attached: AttachedPolicy, log: RowLog, most_in_flight: int
) -> PendingResponse:
    """Return the response to a request. If the request repeats an earlier one, it is that request's response.

    Raises:
        RefusedError: the request is too long, or the session has reached its limit of calls or concurrent requests.
    """
    spec, request = session.spec, session.locate(request)
    most = min(request.max_tokens or spec.max_tokens, spec.max_tokens)
    key: RequestKey = (request.digest, request.n, most, request.stop, request.response_format)
    again = session.find_repeat(key, request.client_retry)
    if again is not None:
        session.count("retries")
        return again
    if session.in_flight > most_in_flight:
        # The client retries this request. Count it as lost, so that the retry does not get another request's answer.
        session.lose(request.digest, ())
        raise RefusedError(
            429, "busy", f"The session has {most_in_flight} requests in flight, its limit. Send the request again."
        )
    if session.sampled + request.n > spec.max_calls:
        session.calls_used_up += 1
        raise RefusedError(
            403,
            "permission",
            f"The session has made {session.sampled} of {spec.max_calls} calls, its limit (rllm.agent.max_steps). "
            f"This request needs {request.n} more.",
            code="max_calls_reached",
        )
    session.refuse_too_long(request)
    sampling = _Sampling(session, request, most, attached, log)
    pending = sampling.pending
    pending.task = asyncio.create_task(sampling.run())
    session.pending[key].append(pending)
    pending.task.add_done_callback(lambda _: session.pending[key].remove(pending) if pending.is_failed else None)
    return pending


class _Sampling:
    """Samples the choices of one request, and stores them in one commit."""

    def __init__(
        self, session: LiveSession, request: ModelRequest, max_tokens: int, attached: AttachedPolicy, log: RowLog
    ) -> None:
        self.pending = PendingResponse(request, attached.renderer)
        self._session = session
        self._request = request
        self._max_tokens = max_tokens
        self._attached = attached
        self._log = log
        self._digest = request.digest.hex()
        self._siblings = [session.take_sibling(request.digest) for _ in range(request.n)]
        self._ids = [f"{session.tag}-{self._digest}-{sibling}" for sibling in self._siblings]
        self._started = time.time()

    async def run(self) -> None:
        """Sample and store all choices, and finish the response.

        Raises:
            RefusedError: the request failed. None of its calls is used.
        """
        session, request, pending = self._session, self._request, self.pending
        renderer = self._attached.renderer
        try:
            prompt_ids, kept = await render(session, request, renderer)
            self._count()
            pending.begin(f"{self._digest}{self._siblings[0]:x}", int(self._started), prompt_ids, kept)
            branches = [self._branch(id_) for id_ in self._ids]
            completions = await self._sample_branches(prompt_ids, branches)
        except BaseException as error:
            session.lose(request.digest, self._siblings)
            if isinstance(error, asyncio.CancelledError):
                session.count("cancelled", request.n)
            raise
        pending.storing = True
        seconds = time.time() - self._started
        choices = [
            choice_of(id_, f"{self._digest} {sibling}", request, prompt_ids, completion, renderer)
            for id_, sibling, completion in zip(self._ids, self._siblings, completions, strict=True)
        ]
        # Copy the array, because a view would keep the whole prompt in memory.
        new_ids = np.array(prompt_ids[kept:], np.int32)
        parent = request.parent
        extends = parent is None or kept == count_tokens(session.lineage(parent))
        rows = [
            self._row(choice, completion, new_ids, None if extends else kept, seconds)
            for choice, completion in zip(choices, completions, strict=True)
        ]
        await self._store_rows(rows)
        for row, branch in zip(rows, branches, strict=True):
            session.add(row, request, branch, prompt_ids)
        pending.finish(choices)

    def _count(self) -> None:
        for name, outcome in self._request.outcomes.items():
            # Claude Code sends the usual temperature with each request.
            is_equal = name == TEMPERATURE and self._request.sent.get(name) == self._session.spec.temperature
            if outcome != "honored" and not is_equal:
                self._session.count(f"{outcome}/{name}")
        if self._request.foreign:
            self._session.count("branches")

    def _branch(self, id_: str) -> str:
        """Return the parent's branch. If a call already continues the parent, return a new branch.

        Engines run the calls of a branch one by one.
        """
        parent, session = self._request.parent, self._session
        if parent is None or parent.id in session.continued:
            return id_
        session.continued.add(parent.id)
        return session.branches[parent.id]

    async def _sample_branches(self, prompt_ids: NDArray[np.int32], branches: Sequence[str]) -> list[Completion]:
        try:
            if len(branches) == 1:
                return [await self._sample(0, branches[0], prompt_ids)]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._sample(*each, prompt_ids)) for each in enumerate(branches)]
            return [task.result() for task in tasks]
        except* PolicyError as errors:
            raise _refusal(errors, self._request) from None

    async def _sample(self, index: int, branch: str, prompt_ids: NDArray[np.int32]) -> Completion:
        request, pending = self._request, self.pending
        on_tokens = partial(pending.add_tokens, index) if pending.is_streamed else None
        sampling = SamplingParams(max_tokens=self._max_tokens, stop=request.stop, on_tokens=on_tokens)
        for demands in _subsets(_demands(request)):
            try:
                completion = await self._attached.policy.sample(
                    np.asarray(prompt_ids, np.int32),
                    replace(sampling, **{each.option: each.value for each in demands}),
                    session=self._session.spec.id,
                    call=self._ids[index],
                    branch=branch,
                )
            except PolicyError as error:
                if error.failure != "unsupported" or not demands or self._session.spec.unsupported == "refuse":
                    raise
                continue
            for demand in _demands(request):
                if demand not in demands:
                    self._session.count(f"ignored/{demand.parameter}")
            return completion
        raise AssertionError("the last subset is empty")

    def _row(
        self, choice: Choice, completion: Completion, new_ids: NDArray[np.int32], kept: int | None, seconds: float
    ) -> CallRow:
        session, request, parent = self._session, self._request, self._request.parent
        spec = session.spec
        parameters: dict[str, Any] = {"max_tokens": self._max_tokens, "stop": list(request.stop)}
        for name, key in ((NAME, spec.name_key), (GROUP, spec.group_key)):
            if key is not None and request.metadata.get(key) is not None:
                parameters[name] = str(request.metadata[key])
        return CallRow(
            id=choice.call,
            session=spec.id,
            role=request.role,
            parent=None if parent is None else parent.id,
            kept_tokens=kept,
            prompt_digest=self._digest,
            new_ids=new_ids,
            response_ids=completion.token_ids,
            logprobs=completion.logprobs,
            weight_version=completion.weight_version,
            version_spans=completion.version_spans,
            finish_reason=completion.finish_reason,
            started=self._started,
            seconds=seconds,
            parameters=parameters,
            messages=self._messages(new_ids),
            response=choice.message,
            sent=request.sent,
            outcomes=request.outcomes,
        )

    def _messages(self, new_ids: NDArray[np.int32]) -> Sequence[Any]:
        """Return the messages to store. The text of a prompt that was sent as tokens is one message of the user."""
        if self._request.prompt_ids is None:
            return self._request.new_messages
        return [{"role": "user", "content": self._attached.renderer.text(new_ids)}]

    async def _store_rows(self, rows: Sequence[CallRow]) -> None:
        try:
            await self._log.add(*rows)
        except StoreError as error:
            self._session.ending = "failed"
            raise RefusedError(
                500, "failed", f"The call could not be stored, so that the rollout fails: {error}"
            ) from error


class _Demand(NamedTuple):
    """A part of a request that only some engines support."""

    parameter: str
    """Name of the parameter in the request."""
    option: str
    """Name of the field of `SamplingParams`."""
    value: Any


def _demands(request: ModelRequest) -> list[_Demand]:
    form = (
        []
        if request.response_format is None
        else [_Demand(request.response_format.parameter, "json_schema", request.response_format.schema)]
    )
    top = [_Demand("top_logprobs", "top_logprobs", request.top_logprobs)] if request.top_logprobs else []
    return [*form, *top]


def _subsets(demands: Sequence[_Demand]) -> Iterator[tuple[_Demand, ...]]:
    """Yield all subsets, from the full set to the empty set."""
    for size in range(len(demands), -1, -1):
        yield from combinations(demands, size)


def _refusal(errors: ExceptionGroup[PolicyError], request: ModelRequest) -> RefusedError:
    first = errors.exceptions[0]
    while isinstance(first, ExceptionGroup):
        first = first.exceptions[0]
    match first.failure:
        case "too_long":
            return invalid(str(first), request.prompt_parameter, "context_length_exceeded")
        case "unknown_token":
            return invalid(str(first), request.prompt_parameter)
        case "unsupported":
            return invalid(f"{first} {IGNORE}", _demands(request)[0].parameter, "unsupported_parameter")
        case "gone":
            return RefusedError(503, "busy", str(first))
        case _:
            return RefusedError(500, "failed", f"The policy could not answer: {first}")
