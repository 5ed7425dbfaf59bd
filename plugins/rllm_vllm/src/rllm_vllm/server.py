"""The process that runs vLLM: ``python -m rllm_vllm.server SOCKET``. SOCKET is an inherited file descriptor.

It serves the training process until the training process closes its end of the socket or dies. Then it kills its
process group, which contains vLLM's processes.

It also finds the weight version of each token. A request may wait in vLLM's queue while new weights are loaded, so its
tokens may come from newer weights than the request. vLLM reports when its engine process generated each batch of
tokens, and generates none while weights are loaded. So the time of a batch determines its weights.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

import numpy as np

from rllm_backend_kit.grammars import Grammar, Grammars
from rllm_core.contracts.engine import FinishReason
from rllm_core.data.version_spans import VersionSpan
from rllm_core.errors import UnsupportedSamplingError
from rllm_serving.connection import PICKLE, Connection, SendPart
from rllm_vllm.cpu import cpu_arguments
from rllm_vllm.messages import (
    SCHEMA,
    Answer,
    Body,
    Digests,
    FailureResponse,
    Generate,
    GenerateResponse,
    LoadWeights,
    Score,
    ScoreResponse,
    Start,
    StartResponse,
    UnsupportedResponse,
)


class OutputProcessor(Protocol):
    """The parts of vLLM's class of this name that are used here."""

    request_states: Mapping[str, Any]
    """vLLM's internal request id -> state. The state contains this package's request id, ``external_req_id``."""
    process_outputs: Callable[..., Any]


class TokenVersions:
    """Counts the tokens of each request by weight version."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Use `clock`, in seconds. It must be the clock with which vLLM's engine process stamps tokens."""
        self._clock = clock
        self._changes: list[float] = []
        self._versions: list[int] = []
        self._spans: dict[str, list[VersionSpan]] = {}

    def change(self, version: int) -> None:
        """Set the weight version of all later tokens. Call it while no tokens are generated."""
        self._changes.append(self._clock())
        self._versions.append(version)

    def begin(self, request: str) -> None:
        """Start to count the tokens of a request."""
        self._spans[request] = []

    def end(self, request: str) -> tuple[VersionSpan, ...]:
        """Stop counting the tokens of a request, and return its version spans in order."""
        return tuple(self._spans.pop(request))

    def count(self, request: str, tokens: int, made: float) -> None:
        """Add tokens that were generated at the time `made`. Ignored if the request is not counted."""
        spans = self._spans.get(request)
        if spans is None or not tokens:
            return
        version = self._versions[bisect_right(self._changes, made) - 1]
        if spans and spans[-1].version == version:
            spans[-1] = VersionSpan(version, spans[-1].tokens + tokens)
        else:
            spans.append(VersionSpan(version, tokens))


def count_tokens(processor: OutputProcessor, versions: TokenVersions) -> None:
    """Change `processor` in place, so that it counts all tokens."""
    process = processor.process_outputs

    def process_and_count(outputs: Iterable[Any], made: float, *rest: Any) -> Any:
        # Count first, because `process` removes the states of finished requests.
        for output in outputs:
            state = processor.request_states.get(output.request_id)
            if state is not None:
                versions.count(state.external_req_id, len(output.new_token_ids), made)
        return process(outputs, made, *rest)

    processor.process_outputs = process_and_count


SHUTDOWN = 1.0
"""Seconds that vLLM has to stop by itself."""
BETWEEN_LOOKS = 0.5
"""Seconds between two checks that vLLM's engine process is alive."""


class Server:
    """Answers concurrent requests of the training process."""

    def __init__(self) -> None:
        self._engine: Any = None
        self._full_logprobs = False
        self._grammars: Grammars | None = None
        """None if the sampler cannot be constrained."""
        self._versions = TokenVersions()
        self._numbers = count()

    async def serve(self, connection: socket.socket) -> None:
        """Serve until the other end or vLLM's engine process has ended."""
        # vLLM aborts a request if the task that handles it is cancelled.
        other = await Connection.open(connection, PICKLE, self._handle)
        reading, watching = asyncio.create_task(other.wait_until_end()), asyncio.create_task(self._watch())
        await asyncio.wait({reading, watching}, return_when=asyncio.FIRST_COMPLETED)
        reading.cancel()
        watching.cancel()
        await other.close()
        if self._engine is not None:
            self._engine.shutdown(timeout=SHUTDOWN)

    async def _watch(self) -> None:
        while self._engine is None or not self._engine.errored:
            await asyncio.sleep(BETWEEN_LOOKS)
        print("vLLM's engine process has ended.", file=sys.stderr, flush=True)  # noqa: T201  (this is the log)

    async def _handle(self, body: Body, _: SendPart) -> Answer:
        try:
            return await self._answer(body)
        except UnsupportedSamplingError as error:
            return UnsupportedResponse(error.code, error.message, error.hint)
        except Exception as error:  # noqa: BLE001  (the other process must learn that it failed)
            return FailureResponse(f"{type(error).__name__}: {error}")

    async def _answer(self, body: Body) -> Answer:
        match body:
            case Start():
                return await self._start(body)
            case Generate():
                return await self._sample(str(next(self._numbers)), body)
            case LoadWeights():
                await self._load_weights(body)
                return None
            case Score():
                return await self._score(body)
            case Digests():
                return await self._digest()

    async def _start(self, start: Start) -> StartResponse:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments = dict(start.arguments)
        if current_platform.is_cpu():
            arguments = cpu_arguments(arguments)
            # Without this variable, vLLM's sampler would still be compiled.
            os.environ["TORCHDYNAMO_DISABLE"] = "1"
        self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
        count_tokens(self._engine.output_processor, self._versions)
        self._full_logprobs = all(await self._engine.collective_rpc("rllm_prepare"))
        marks = start.marks
        if all(await self._engine.collective_rpc("rllm_constrain", args=(marks.stop_ids, marks.reasoning_ids))):
            self._grammars = marks.load_grammars(self._engine.model_config)
        return StartResponse(self._engine.model_config.max_model_len)

    async def _sample(self, request_id: str, request: Generate) -> GenerateResponse:
        # Compile the grammar in a thread, because a large schema takes long and must not block other requests.
        grammar = None if request.json_schema is None else await asyncio.to_thread(self._grammar, request)
        self._versions.begin(request_id)
        try:
            tokens, logprobs, finish_reason = await self._generate(request_id, request)
        finally:
            spans = self._versions.end(request_id)
        if grammar is not None:
            await asyncio.to_thread(_check_grammar, grammar, tokens)
        if not spans:
            raise RuntimeError("vLLM ended a request without a token")
        return GenerateResponse(tokens, logprobs, finish_reason, spans)

    def _grammar(self, request: Generate) -> Grammar:
        assert request.json_schema is not None
        if self._grammars is None:
            raise UnsupportedSamplingError(
                "json-schema-not-supported",
                "vLLM's model runner V2 and speculative decoding cannot constrain a response to a JSON schema.",
                "Set VLLM_USE_V2_MODEL_RUNNER=0 in the environment, and remove speculative_config from engine_args.",
            )
        return self._grammars.of_schema(request.json_schema, np.array(request.prompt_ids, np.int32))

    async def _generate(
        self, request_id: str, request: Generate
    ) -> tuple[tuple[int, ...], tuple[float, ...], FinishReason]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            seed=request.seed,
            logprobs=0,
            ignore_eos=True,
            stop_token_ids=list(request.stop_ids),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args=None if request.json_schema is None else {SCHEMA: request.json_schema},
        )
        prompt = {"prompt_token_ids": list(request.prompt_ids)}
        async for output in self._engine.generate(prompt, sampling, request_id):
            response = output.outputs[0]
            tokens = tuple(response.token_ids)
            logprobs = tuple(each[token].logprob for each, token in zip(response.logprobs, tokens, strict=True))
            if (request.top_p < 1 or request.top_k > 0) and not self._full_logprobs:
                # This sampler reports log-probs after top-p and top-k. The engine needs the log-probs before them.
                logprobs = (math.nan,) * len(tokens)
            return tokens, logprobs, "stop" if response.finish_reason == "stop" else "length"
        raise RuntimeError("vLLM ended a request without an answer")

    async def _score(self, request: Score) -> ScoreResponse:
        copies = self._engine.vllm_config.parallel_config.data_parallel_size
        scores = [
            [self._score_row(row, copy if copies > 1 else None) for row in request.rows] for copy in range(copies)
        ]
        return ScoreResponse(tuple([tuple(await asyncio.gather(*rows)) for rows in scores]))

    async def _score_row(self, row: Sequence[int], copy: int | None) -> tuple[float, ...]:
        """Return the log-probs of a prompt's tokens but the first. vLLM computes them without its prefix cache."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        prompt = {"prompt_token_ids": list(row)}
        request_id = str(next(self._numbers))
        async for output in self._engine.generate(prompt, sampling, request_id, data_parallel_rank=copy):
            return tuple(each[token].logprob for each, token in zip(output.prompt_logprobs[1:], row[1:], strict=True))
        raise RuntimeError("vLLM ended a request without an answer")

    async def _digest(self) -> dict[str, str]:
        workers = await self._engine.collective_rpc("rllm_digests")
        return {name: digest for worker in workers for name, digest in worker.items()}

    async def _load_weights(self, request: LoadWeights) -> None:
        # Running requests wait, and then compute their cached values again with the new weights.
        await self._engine.pause_generation(mode="keep", clear_cache=False)
        await self._engine.collective_rpc("rllm_load_weights", args=(request.directory,))
        if not await self._engine.reset_prefix_cache(reset_running_requests=True):
            raise RuntimeError("vLLM could not clear its cache of the old weights")
        self._versions.change(request.version)
        await self._engine.resume_generation()


def _check_grammar(grammar: Grammar, tokens: Sequence[int]) -> None:
    """Raise UnsupportedSamplingError if a grammar does not allow a response, or the model could not match it."""
    for at, token in enumerate(tokens):
        allowed = bool(grammar.allowed_tokens()[token])
        try:
            grammar.take(token)
            problem = "" if allowed else f"token {token} is not allowed"
        except RuntimeError as error:
            problem = str(error)
        if problem:
            raise UnsupportedSamplingError(
                "bad-json-schema",
                f"The response does not match the JSON schema after {at} tokens: {problem}.",
                "Simplify the schema.",
            )


def main() -> None:
    # Ctrl-C in the terminal is for the training process, which stops this process when it has finished.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        asyncio.run(Server().serve(socket.socket(fileno=int(sys.argv[1]))))
    finally:
        os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    main()
