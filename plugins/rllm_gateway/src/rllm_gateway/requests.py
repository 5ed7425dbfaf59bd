"""One request: find its place, sample, store, answer. What is answered is stored before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from rllm_core.contracts.engine import Completion
from rllm_core.contracts.renderer import StreamingRenderer
from rllm_core.data.record import Call, CallKey
from rllm_gateway.answer import Answer, Begun, Choice
from rllm_gateway.asked import Asked
from rllm_gateway.calls import CallRow, StoreError
from rllm_gateway.growing import Growing
from rllm_gateway.large_prompts import refuse_too_long, rendered
from rllm_gateway.live_session import LiveSession, RequestKey, StoredCall, Work
from rllm_gateway.parameters import IGNORE
from rllm_gateway.policy import AttachedPolicy, PolicyError, PolicyGoneError, PromptTooLongError, UnsupportedError
from rllm_gateway.prompting import Prompt, of_user
from rllm_gateway.refusals import RefusedError, invalid
from rllm_gateway.replies import choice_of
from rllm_gateway.row_log import RowLog
from rllm_gateway.session import GROUP, NAME
from rllm_gateway.tree import Node, Place


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """A translated request, and what its headers and path say."""

    role: str
    asked: Asked
    client_retry: int | None
    traceparent: str | None


def begin(session: LiveSession, request: Request, attached: AttachedPolicy, log: RowLog, most_in_flight: int) -> Work:
    """The work that answers a request: new, or that of the request which it repeats.

    Raises:
        RefusedError: it is too long, or the session has no calls left, or too many at a time.
    """
    asked, spec = request.asked, session.spec
    place = session.tree.place(request.role, asked)
    most = min(asked.max_tokens or spec.max_tokens, spec.max_tokens)
    key: RequestKey = (place.digest, asked.n, most, asked.stop, asked.wanted)
    again = session.repeated(key, request.client_retry)
    if again is not None:
        session.count("retries")
        return again
    if session.in_flight > most_in_flight:
        # What is refused now is tried again, and is no other request's answer then.
        session.lose(place.digest, ())
        raise RefusedError(
            429, "busy", f"The session has {most_in_flight} requests in flight, its limit. Send the request again."
        )
    if session.sampled + asked.n > spec.max_calls:
        session.calls_used_up += 1
        raise RefusedError(
            403,
            "permission",
            f"The session has made {session.sampled} of {spec.max_calls} calls, its limit (rllm.agent.max_steps), "
            f"and {asked.n} more {'is' if asked.n == 1 else 'are'} asked for.",
            code="max_calls_reached",
        )
    refuse_too_long(session, asked)
    sampling = _Sampling(session, request, place, most, attached, log)
    growing = None
    if asked.stream and isinstance(attached.renderer, StreamingRenderer):
        growing = Growing(asked, attached.renderer)
    work = sampling.work = Work(asyncio.create_task(sampling.run()), growing=growing)
    session.works[key].append(work)
    work.task.add_done_callback(lambda task: _forget_failed(session, key, work))
    return work


def _forget_failed(session: LiveSession, key: RequestKey, work: Work) -> None:
    if work.failed:
        session.works[key].remove(work)


class _Sampling:
    """Samples the choices of one request, stores them together, and makes the answer."""

    def __init__(
        self,
        session: LiveSession,
        request: Request,
        place: Place,
        max_tokens: int,
        attached: AttachedPolicy,
        log: RowLog,
    ) -> None:
        self.work: Work
        self._session = session
        self._request = request
        self._place = place
        self._prompt: Prompt
        self._max_tokens = max_tokens
        self._attached = attached
        self._log = log
        self._digest = place.digest.hex()
        self._siblings = [session.take_sibling(place.digest) for _ in range(request.asked.n)]
        self._started = time.time()

    async def run(self) -> Answer:
        """Raises RefusedError; nothing of the request counts then."""
        session, asked, place = self._session, self._request.asked, self._place
        accumulate = session.spec.accumulate_reasoning
        try:
            self._prompt = await rendered(place, asked, self._attached.renderer, accumulate)
            self._count()
            begun = self._begun()
            if self.work.growing is not None:
                self.work.growing.begin(begun, self._prompt)
            branches = [self._branch(sibling) for sibling in self._siblings]
            completions = await self._sampled(branches)
        except BaseException as error:
            session.lose(place.digest, self._siblings)
            if isinstance(error, asyncio.CancelledError):
                session.count("cancelled", asked.n)
            raise
        self.work.storing = True
        seconds = time.time() - self._started
        ids = [self._id(sibling) for sibling in self._siblings]
        choices = [
            choice_of(id_, f"{self._digest} {sibling}", asked, self._prompt, completion, self._attached.renderer)
            for id_, sibling, completion in zip(ids, self._siblings, completions, strict=True)
        ]
        rows = [
            self._row(choice, sibling, completion, seconds)
            for choice, sibling, completion in zip(choices, self._siblings, completions, strict=True)
        ]
        await self._stored(rows)
        for choice, completion, branch in zip(choices, completions, branches, strict=True):
            self._remember(choice, completion, branch)
        return Answer(**vars(begun), choices=tuple(choices))

    def _begun(self) -> Begun:
        return Begun(
            id=f"{self._digest}{self._siblings[0]:x}",
            created=int(self._started),
            prompt_tokens=len(self._prompt.ids),
            cached_tokens=self._prompt.kept,
        )

    def _count(self) -> None:
        for name, outcome in self._request.asked.outcomes.items():
            if outcome != "honoured":
                self._session.count(f"{outcome}/{name}")
        if self._place.foreign:
            self._session.count("branches")

    async def _sampled(self, branches: list[str]) -> list[Completion]:
        try:
            if len(branches) == 1:
                return [await self._sample(0, branches[0])]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._sample(*each)) for each in enumerate(branches)]
            return [task.result() for task in tasks]
        except* PolicyError as errors:
            raise _refusal(errors, self._request.asked) from None

    async def _sample(self, index: int, branch: str) -> Completion:
        asked, growing = self._request.asked, self.work.growing
        sample = partial(
            self._attached.policy.sample,
            session=self._session.spec.id,
            call=self._id(self._siblings[index]),
            branch=branch,
            prompt_ids=self._prompt.ids,
            max_tokens=self._max_tokens,
            stop=asked.stop,
            on_tokens=None if growing is None else partial(growing.add, index),
        )
        for demands in _subsets(_demands(asked)):
            try:
                completion = await sample(**{each.option: each.value for each in demands})
            except UnsupportedError:
                if not demands or self._session.spec.unsupported == "refuse":
                    raise
                continue
            for demand in _demands(asked):
                if demand not in demands:
                    self._session.count(f"ignored/{demand.parameter}")
            return completion
        raise AssertionError("the last subset is empty")

    async def _stored(self, rows: list[CallRow]) -> None:
        try:
            await self._log.add(*rows)
        except StoreError as error:
            self._session.ending = "failed"
            raise RefusedError(
                500, "failed", f"The call could not be stored, so that the attempt fails: {error}"
            ) from error

    def _id(self, sibling: int) -> str:
        return f"{self._session.tag}-{self._digest}-{sibling}"

    def _branch(self, sibling: int) -> str:
        """That of the parent, unless another call continues it already: engines serialise the calls of a branch."""
        parent = self._place.parent
        if parent is None or parent.continued:
            return self._id(sibling)
        parent.continued = True
        return parent.branch

    def _row(self, choice: Choice, sibling: int, completion: Completion, seconds: float) -> CallRow:
        spec, asked, place, request = self._session.spec, self._request.asked, self._place, self._request
        parent, prompt = place.parent, self._prompt
        key = CallKey(
            run=spec.run,
            attempt=spec.attempt,
            retry=spec.retry,
            parent=None if parent is None else parent.digest.hex(),
            sibling=sibling,
        )
        parameters: dict[str, Any] = {"max_tokens": self._max_tokens, "stop": list(asked.stop), **self._metadata()}
        call = Call(
            key=key,
            prompt_digest=self._digest,
            new_ids=prompt.ids[prompt.kept :],
            response_ids=completion.token_ids,
            logprobs=completion.logprobs,
            weight_version=completion.weight_version,
            version_spans=completion.version_spans,
            finish_reason=completion.finish_reason,
            started=self._started,
            seconds=seconds,
            parameters=parameters,
        )
        return CallRow(
            id=choice.call,
            session=spec.id,
            role=request.role,
            parent=None if parent is None else parent.id,
            kept_tokens=None if parent is None or prompt.kept == parent.size else prompt.kept,
            call=call,
            messages=place.rest,
            reply=choice.message,
            sent=asked.sent,
            outcomes=asked.outcomes,
            client_retry=request.client_retry,
            traceparent=request.traceparent,
        )

    def _metadata(self) -> dict[str, str]:
        """What the request says of its trajectory; a stored call has it nowhere else."""
        spec, asked = self._session.spec, self._request.asked
        said = {NAME: _value(asked, spec.name_key), GROUP: _value(asked, spec.group_key)}
        return {key: value for key, value in said.items() if value is not None}

    def _remember(self, choice: Choice, completion: Completion, branch: str) -> None:
        session, asked, place, prompt = self._session, self._request.asked, self._place, self._prompt
        parent, spec = place.parent, session.spec
        node = Node(
            id=choice.call,
            digest=place.digest,
            parent=parent,
            branch=branch,
            kept=prompt.kept,
            # A copy: a view would keep the whole prompt in memory.
            new_ids=np.array(prompt.ids[prompt.kept :], np.int32),
            response_ids=completion.token_ids,
            message=choice.message,
            heard_user=of_user(place.rest),
            said=place.rest if spec.keeps_messages else (),
            tools=place.tools,
        )
        session.tree.add(node)
        session.calls.append(
            StoredCall(
                id=node.id,
                parent=None if parent is None else parent.id,
                role=self._request.role,
                name=_value(asked, spec.name_key),
                group=_value(asked, spec.group_key),
                node=node,
            )
        )


def _value(asked: Asked, key: str | None) -> str | None:
    value = None if key is None else asked.metadata.get(key)
    return None if value is None else str(value)


@dataclass(frozen=True)
class _Demand:
    """A part of a request that only some engines support."""

    parameter: str
    """Its name in the request."""
    option: str
    """Its name in `Policy.sample`."""
    value: Any


def _demands(asked: Asked) -> list[_Demand]:
    form = [] if asked.wanted is None else [_Demand(asked.wanted.parameter, "json_schema", asked.wanted.schema)]
    top = [_Demand("top_logprobs", "top_logprobs", asked.top_logprobs)] if asked.top_logprobs else []
    return [*form, *top]


def _subsets(demands: Sequence[_Demand]) -> Iterator[tuple[_Demand, ...]]:
    """Yield all of them first, then ever fewer, none last."""
    for size in range(len(demands), -1, -1):
        yield from combinations(demands, size)


def _refusal(errors: ExceptionGroup[PolicyError], asked: Asked) -> RefusedError:
    first = errors.exceptions[0]
    while isinstance(first, ExceptionGroup):
        first = first.exceptions[0]
    match first:
        case PromptTooLongError():
            return invalid(str(first), "messages", "context_length_exceeded")
        case UnsupportedError():
            return invalid(f"{first} {IGNORE}", _demands(asked)[0].parameter, "unsupported_parameter")
        case PolicyGoneError():
            return RefusedError(503, "busy", str(first))
        case _:
            return RefusedError(500, "failed", f"The policy could not answer: {first}")
