"""The trainer's end of the link: open and close sessions, and sample the responses for their agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import count
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, OnTokens, RolloutEngine, SamplingParams, TopTokens
from rllm_core.data.types import Step
from rllm_core.data.version_spans import VersionSpan
from rllm_core.errors import BackendError, RllmError, UnsupportedSamplingError, describe_error
from rllm_gateway.sessions.link import (
    FRAMES,
    MAX_BYTES,
    OPTIONS,
    Failure,
    OpenedSession,
    PolicyError,
    SessionSpec,
    SessionTrace,
    completion_as_json,
    trace_of,
)
from rllm_serving.connection import Connection, SendPart

T = TypeVar("T")
SECONDS_TO_ANSWER = 60.0
"""Time limit for opening or closing a session. This normally takes milliseconds."""


class TokenCounter:
    """An `OnTokens` that counts the tokens of a call, and passes them to the client's `OnTokens`."""

    def __init__(self, on_tokens: OnTokens | None) -> None:
        self._on_tokens = on_tokens
        self.tokens = 0

    def __call__(self, ids: NDArray[np.int32]) -> None:
        self.tokens += len(ids)
        if self._on_tokens is not None:
            self._on_tokens(ids)


class RolloutSampler:
    """Samples for the agent of one rollout, by the same rules as built-in workflows."""

    def __init__(
        self, engine: RolloutEngine, sampling: SamplingParams, name: str, *, max_prompt_length: int, engine_stops: bool
    ) -> None:
        """Make a sampler.

        Args:
            engine: the engine of the rollout.
            sampling: sampling parameters, with the maximum length of a response.
            name: prefix of the engine's sessions. There is one per branch, because calls of a session run one by one.
            max_prompt_length: maximum number of tokens of a prompt.
            engine_stops: True if the engine supports stop strings. Otherwise the sampler cuts responses there.
        """
        self._engine = engine
        self._sampling = sampling
        self._max_prompt_length = max_prompt_length
        self._name = name
        self._engine_stops = engine_stops
        self._branches: set[str] = set()
        self.calls: dict[str, Step] = {}
        """Call id -> sampled tokens. If a call was repeated, earlier tokens are under ids that belong to no call."""
        self.cut_tokens = 0
        """Number of sampled tokens after stop strings, which are not part of a response."""
        self._cancelled: list[TokenCounter] = []
        self._latest: dict[str, object] = {}
        """Call id -> mark of its latest request. If a call is repeated, the gateway uses only the latest response."""
        self._given_up = count()
        self.too_long = 0
        """Number of prompts that were too long."""
        self.backend_error: BackendError | None = None
        """Error of the engine. It is not a failure of the rollout."""

    async def sample(
        self, prompt_ids: NDArray[np.int32], sampling: SamplingParams, *, call: str, branch: str
    ) -> Completion:
        """Continue a prompt. See `Policy.sample`.

        Raises:
            PolicyError: the prompt exceeds ``data.max_prompt_length``, or leaves no room in the context.
            UnsupportedSamplingError: the engine does not support a JSON schema or the most likely tokens.
            BackendError: the engine has stopped.
        """
        engine, stop = self._engine, sampling.stop
        room = engine.max_context - len(prompt_ids)
        if len(prompt_ids) > self._max_prompt_length or room < 1:
            self.too_long += 1
            longest = min(self._max_prompt_length, engine.max_context - 1)
            raise PolicyError(f"a prompt of {len(prompt_ids)} tokens; this run takes {longest} at most", "too_long")
        # Tokens after a stop string are not part of the response, and they are found only at the end.
        on_tokens = sampling.on_tokens if self._engine_stops or not stop else None
        most = min(sampling.max_tokens, self._sampling.max_tokens, room)
        sampling = replace(
            self._sampling,
            max_tokens=most,
            stop=stop if self._engine_stops else (),
            json_schema=sampling.json_schema,
            top_logprobs=sampling.top_logprobs,
            on_tokens=(counter := TokenCounter(on_tokens)),
        )
        session = f"{self._name}/{branch}"
        self._branches.add(session)
        if (before := self.calls.pop(call, None)) is not None:
            self._set_aside(call, before)
        mine = self._latest[call] = object()
        try:
            whole = await engine.generate(prompt_ids, sampling, session=session)
        except BaseException as error:
            self._cancelled.append(counter)
            if isinstance(error, BackendError):
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

    @property
    def cancelled_tokens(self) -> int:
        """Number of tokens that were sampled before their call was cancelled or failed.

        An engine that ignores `SamplingParams.on_tokens` does not report them.
        """
        return sum(counter.tokens for counter in self._cancelled)

    def _set_aside(self, call: str, sampled: Step) -> None:
        self.calls[f"{call}~{next(self._given_up)}"] = sampled

    async def close(self) -> None:
        """End the engine's sessions, so that it frees their cache."""
        branches, self._branches = self._branches, set()
        for branch in sorted(branches):
            await self._engine.end_session(branch)


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


class TrainerLink:
    """The trainer's connection to the gateway. No other object may use the gateway's socket."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        log_tail: Callable[[], str] = str,
    ) -> None:
        """Make the link. Needs a running event loop.

        Args:
            reader: reader of the gateway's socket.
            writer: writer of the gateway's socket.
            log_tail: returns the end of the gateway's log, for the error if the gateway has stopped.
        """
        self._log_tail = log_tail
        self._samplers: dict[str, RolloutSampler] = {}
        self._gateway = Connection(reader, writer, FRAMES, self._handle, MAX_BYTES)
        self._ended = asyncio.create_task(self._gateway.wait_until_end())

    async def open_session(self, spec: SessionSpec, sampler: RolloutSampler) -> OpenedSession:
        """Open a session. `sampler` samples its responses. If this is cancelled, the session is closed.

        Raises:
            BackendError: the gateway rejected the session, has stopped, or does not answer.
        """
        self._samplers[spec.id] = sampler
        try:
            answer = await self._ask({"op": "open", "spec": asdict(spec)}, "open a session")
        except BaseException as error:
            del self._samplers[spec.id]
            if isinstance(error, asyncio.CancelledError):
                # The answer may be on its way. If the gateway has not opened the session, this is an error.
                with suppress(BackendError):
                    await self.close_session(spec.id)
            raise
        return OpenedSession(**answer["opened"])

    async def close_session(self, session: str) -> SessionTrace:
        """Seal a session, and return its trace. Its running calls are cancelled, and later calls are rejected.

        Raises:
            BackendError: the gateway has stopped, or does not answer.
        """
        try:
            answer = await self._ask({"op": "close", "session": session}, "close a session")
        finally:
            self._samplers.pop(session, None)
        return trace_of(answer["trace"])

    async def run_unless_stopped(self, needed: Coroutine[Any, Any, T]) -> T:
        """Await `needed` and return its result. If the gateway stops, cancel it, because an agent may wait for hours.

        Raises:
            BackendError: the gateway has stopped.
        """
        task = asyncio.create_task(needed)
        try:
            await asyncio.wait({task, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise self._has_ended("run the agent")
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def close(self) -> None:
        """Close the connection."""
        await self._gateway.close()

    async def _ask(self, body: dict[str, Any], what: str) -> Mapping[str, Any]:
        try:
            answer: Mapping[str, Any] = await self._gateway.ask(body, SECONDS_TO_ANSWER)
        except TimeoutError as error:
            raise BackendError(
                "gateway-failed",
                f"Cannot {what}: the gateway has not answered for {SECONDS_TO_ANSWER:g} s.",
                "Continue from the newest checkpoint with --resume.",
            ) from error
        except EOFError as error:
            raise self._has_ended(what) from error
        if "error" in answer:
            raise BackendError("gateway-failed", f"Cannot {what}: {answer['error']}.", "See the log of the gateway.")
        return answer

    def _has_ended(self, what: str) -> BackendError:
        return BackendError(
            "gateway-ended",
            f"Cannot {what}: the gateway has ended.",
            "Continue from the newest checkpoint with --resume.",
            self._log_tail(),
        )

    async def _handle(self, body: Any, send_part: SendPart) -> dict[str, Any]:
        sampler = self._samplers.get(body["session"])
        if sampler is None:
            return _failure("error", "the session is closed")
        try:
            options = {**{name: body[name] for name in OPTIONS}, "stop": tuple(body["stop"])}
            on_tokens = (lambda ids: send_part({"token_ids": ids})) if body["partial"] else None
            sampling = SamplingParams(**options, on_tokens=on_tokens)
            completion = await sampler.sample(body["prompt_ids"], sampling, call=body["call"], branch=body["branch"])
        except PolicyError as error:
            return _failure(error.failure, str(error))
        except UnsupportedSamplingError as error:
            return _failure("unsupported", str(error))
        except BackendError as error:
            return _failure("gone", error.message)
        except RllmError as error:
            return _failure("unknown_token" if error.code == "unknown-token" else "error", error.message)
        except Exception as error:  # noqa: BLE001  (an engine is foreign code; the agent's call fails)
            return _failure("error", describe_error(error))
        return completion_as_json(completion)


def _failure(failure: Failure, message: str) -> dict[str, Any]:
    return {"failure": failure, "message": message}
