"""Engines that are wrong in one way each, and what the contract tells their authors."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch

from rllm_core.contracts import (
    Completion,
    EnginePlugin,
    EngineSetup,
    HostedEngine,
    NamedTensors,
    NoParams,
    SamplingParams,
)
from rllm_core.data.version_spans import VersionSpan
from rllm_core.errors import BackendError
from rllm_core.rollout.prompts import checked_prompt
from rllm_plugin_kit import EngineContract
from rllm_plugin_kit.engine_session import EngineSession, Request
from rllm_plugin_kit.small_model import STOP_ID

KNOWN: dict[bytes, dict[tuple[int, ...], Any]] = {}
"""Logits by weights and by the tokens before: the contract repeats its requests, and all engines have its models."""


class Good:
    """Every token from the whole conversation, one request after the other."""

    def __init__(self, params: NoParams) -> None:
        self.version = -1
        self.known: dict[tuple[int, ...], Any] = {}

    async def start(self, setup: EngineSetup) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        self.renderer, self.max_context = setup.renderer, setup.max_context
        self.model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(setup.directory)).eval()

    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        _, strange = self.model.load_state_dict(dict(weights), strict=False)
        if strange:
            raise BackendError("made-up", "The weights are another model's.")
        self.version = version
        weights_now = b"".join(parameter.detach().numpy().tobytes() for parameter in self.model.parameters())
        self.known = KNOWN.setdefault(hashlib.sha256(weights_now).digest(), {})

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        prompt, room = checked_prompt(prompt_ids, sampling, self.max_context)
        version = self.version
        tokens, logprobs, reason = await self.response(prompt.tolist(), sampling, room)
        return Completion(
            token_ids=np.array(tokens, np.int32),
            logprobs=np.array(logprobs, np.float32),
            finish_reason=reason,
            weight_version=version,
        )

    async def response(
        self, prompt: list[int], sampling: SamplingParams, room: int
    ) -> tuple[list[int], list[float], Any]:
        tokens: list[int] = []
        logprobs: list[float] = []
        while len(tokens) < room:
            known = self.logprobs([*prompt, *tokens], sampling)
            token = self.draw(self.truncated(known, sampling), sampling, len(tokens))
            tokens.append(token)
            logprobs.append(float(known[token]))
            if token == STOP_ID:
                return tokens, logprobs, "stop"
            await asyncio.sleep(0)
        return tokens, logprobs, "length"

    def logprobs(self, tokens: list[int], sampling: SamplingParams) -> Any:
        logits = self.known.get(tuple(tokens))
        if logits is None:
            with torch.inference_mode():
                logits = self.model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].double()
            self.known[tuple(tokens)] = logits
        return torch.log_softmax(logits / (sampling.temperature or 1.0), dim=-1).numpy()

    def truncated(self, logprobs: Any, sampling: SamplingParams) -> Any:
        kept = np.argsort(-logprobs)[: sampling.top_k if sampling.top_k > 0 else None]
        shares = np.exp(logprobs[kept])
        kept = kept[np.cumsum(shares) - shares < sampling.top_p * shares.sum()]
        cut = np.full_like(logprobs, -np.inf)
        cut[kept] = logprobs[kept]
        return cut

    def draw(self, logprobs: Any, sampling: SamplingParams, number: int) -> int:
        noise = np.random.default_rng((sampling.seed, number)).gumbel(size=len(logprobs))
        return int((logprobs + (noise if sampling.temperature else 0.0)).argmax())

    async def end_session(self, session: str) -> None:
        pass

    async def close(self) -> None:
        pass


class LeavesTheStopTokenOut(Good):
    async def response(self, *arguments: Any) -> Any:
        tokens, logprobs, reason = await super().response(*arguments)
        kept = slice(None, -1) if reason == "stop" and len(tokens) > 1 else slice(None)
        return tokens[kept], logprobs[kept], reason


class NeverStops(Good):
    async def response(self, prompt: list[int], sampling: SamplingParams, room: int) -> Any:
        tokens: list[int] = []
        logprobs: list[float] = []
        for number in range(room):
            known = self.logprobs([*prompt, *tokens], sampling)
            tokens.append(self.draw(known, sampling, number))
            logprobs.append(float(known[tokens[-1]]))
        return tokens, logprobs, "length"


class LogProbsAfterTruncation(Good):
    def logprobs(self, tokens: list[int], sampling: SamplingParams) -> Any:
        cut = super().truncated(super().logprobs(tokens, sampling), sampling)
        return cut - np.log(np.exp(cut).sum())


class LogProbsWithoutTemperature(Good):
    def logprobs(self, tokens: list[int], sampling: SamplingParams) -> Any:
        return super().logprobs(tokens, replace(sampling, temperature=1.0))


class NoLogProbs(Good):
    async def response(self, *arguments: Any) -> Any:
        tokens, _, reason = await super().response(*arguments)
        return tokens, [np.nan] * len(tokens), reason


class ForgetsTopK(Good):
    def truncated(self, logprobs: Any, sampling: SamplingParams) -> Any:
        return super().truncated(logprobs, replace(sampling, top_k=-1))


class SamplesAtZero(Good):
    def draw(self, logprobs: Any, sampling: SamplingParams, number: int) -> int:
        return super().draw(logprobs, replace(sampling, temperature=1.0), number)


class OneGeneratorForAll(Good):
    generator = np.random.default_rng(0)

    def draw(self, logprobs: Any, sampling: SamplingParams, number: int) -> int:
        return int((logprobs + self.generator.gumbel(size=len(logprobs))).argmax())


class ForgetsTheSeed(Good):
    def draw(self, logprobs: Any, sampling: SamplingParams, number: int) -> int:
        return super().draw(logprobs, replace(sampling, seed=1), number)


class SeesTheLastTurnAlone(Good):
    def logprobs(self, tokens: list[int], sampling: SamplingParams) -> Any:
        return super().logprobs(tokens[-12:], sampling)


class KnowsItsSessions(Good):
    sessions: frozenset[str] = frozenset()

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        self.sessions |= {session}
        return await super().generate(prompt_ids, sampling, session=session)

    async def end_session(self, session: str) -> None:
        if session not in self.sessions:
            raise KeyError(session)
        self.sessions -= {session}


class CutsThePrompt(Good):
    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        return await super().generate(list(prompt_ids)[-100:], sampling, session=session)


class RaisesAnything(Good):
    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        assert len(prompt_ids) < self.max_context
        return await super().generate(prompt_ids, sampling, session=session)


class IgnoresStopTexts(Good):
    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        return await super().generate(prompt_ids, replace(sampling, stop=()), session=session)


class KeepsTheFirstWeights(Good):
    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        if self.version < 0:
            await super().load_weights(weights, version)
        self.version = version


class SharesTheTensors(Good):
    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        named = dict(weights)
        for name, parameter in self.model.named_parameters():
            parameter.data = named[name]
        self.version = version
        self.known = {}


class SaysNoVersion(Good):
    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        await super().load_weights(weights, 0)


class SaysTheLatestVersion(Good):
    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        completion = await super().generate(prompt_ids, sampling, session=session)
        return replace(completion, weight_version=self.version)


class TellsVersionsApart(Good):
    """Says of each token which weights drew it."""

    drawn: ContextVar[list[int]] = ContextVar("drawn")
    """Versions of the tokens of one call."""

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        drawn: list[int] = []
        self.drawn.set(drawn)
        completion = await super().generate(prompt_ids, sampling, session=session)
        spans = tuple(VersionSpan(version, len(list(tokens))) for version, tokens in groupby(drawn))
        return replace(completion, weight_version=min(drawn), version_spans=self.shift_spans(spans))

    def draw(self, logprobs: Any, sampling: SamplingParams, number: int) -> int:
        self.drawn.get().append(self.version)
        return super().draw(logprobs, sampling, number)

    def shift_spans(self, spans: tuple[VersionSpan, ...]) -> tuple[VersionSpan, ...]:
        return spans


class TellsVersionsApartTooLate(TellsVersionsApart):
    def shift_spans(self, spans: tuple[VersionSpan, ...]) -> tuple[VersionSpan, ...]:
        if len(spans) < 2 or spans[1].tokens < 2:
            return spans
        first, second = spans
        return (first._replace(tokens=first.tokens + 1), second._replace(tokens=second.tokens - 1))


class TakesAnyWeights(Good):
    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        self.model.load_state_dict(dict(weights), strict=False)
        self.version = version
        self.known = {}


class RaisesOnStrangeWeights(Good):
    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        named = dict(weights)
        self.model.load_state_dict({name: named[name] for name, _ in self.model.named_parameters()}, strict=False)
        self.version = version
        self.known = {}


class ClosesOnce(Good):
    closed = False

    async def close(self) -> None:
        assert not self.closed
        self.closed = True


class LeavesAVariable(Good):
    async def start(self, setup: EngineSetup) -> None:
        os.environ["MY_ENGINE"] = "running"
        await super().start(setup)


class DrawsFromTheSharedGenerator(Good):
    async def response(self, *arguments: Any) -> Any:
        random.random()
        return await super().response(*arguments)


class ReadsTheDirectoryLater(Good):
    async def start(self, setup: EngineSetup) -> None:
        self.setup = setup

    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        await super().start(self.setup)
        await super().load_weights(weights, version)


def plugin(make: Any) -> EnginePlugin[Any]:
    return EnginePlugin(name="mine", summary="For tests.", params=NoParams, load=lambda: make)


Start = Callable[[type[HostedEngine]], EngineSession]


@pytest.fixture
def started() -> Iterator[Start]:
    """Starts engines as their contract does; what a test leaves open is closed."""
    sessions: list[EngineSession] = []

    def start(make: type[HostedEngine]) -> EngineSession:
        tests = type("Tests", (EngineContract,), {"record": lambda self: plugin(make)})
        sessions.append(tests().start({}))
        return sessions[-1]

    yield start
    for session in sessions:
        if not session.closed:
            with suppress(AssertionError):
                session.close()


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.long
def test_a_good_engine_has_no_complaints(complaints: Any, started: Start) -> None:
    assert complaints(EngineContract, plugin(Good), given={"session": started(Good)}) == {}


@pytest.mark.long
def test_an_engine_may_tell_versions_apart(complaint: Any, started: Start) -> None:
    given = {"session": started(TellsVersionsApart)}
    test = "weight_version_is_correct_during_a_sync"
    assert complaint(EngineContract, plugin(TellsVersionsApart), test, given=given) == ""


CASES: Sequence[tuple[type[HostedEngine], str, str]] = [
    (LeavesTheStopTokenOut, "finish_reason_matches_the_tokens", "'stop'"),
    (NeverStops, "finish_reason_matches_the_tokens", "'length'"),
    (LogProbsAfterTruncation, "log_probs_match_the_model", "'top_k'"),
    (LogProbsWithoutTemperature, "log_probs_match_the_model", "'temperature'"),
    (NoLogProbs, "log_probs_match_the_model", "reports no log-probs"),
    (ForgetsTopK, "greedy_and_top_k_sample_likeliest_tokens", "not among the"),
    (SamplesAtZero, "greedy_and_top_k_sample_likeliest_tokens", "not among the"),
    (OneGeneratorForAll, "tokens_depend_only_on_prompt_and_seed", "when other requests"),
    (ForgetsTheSeed, "tokens_depend_only_on_prompt_and_seed", "samples the same"),
    (SeesTheLastTurnAlone, "each_turn_sees_the_whole_conversation", "in turn 1"),
    (KnowsItsSessions, "any_session_can_be_ended", "KeyError"),
    (CutsThePrompt, "full_context_ends_a_response_or_is_rejected", "where its context"),
    (RaisesAnything, "full_context_ends_a_response_or_is_rejected", "AssertionError"),
    (OneGeneratorForAll, "a_cancelled_request_does_not_change_others", "samples different tokens"),
    (IgnoresStopTexts, "stop_text_ends_a_response_or_is_rejected", "ignores a stop"),
    (KeepsTheFirstWeights, "new_weights_are_used_for_sampling", "after new weights"),
    (SharesTheTensors, "new_weights_are_used_for_sampling", "after new weights"),
    (SaysNoVersion, "new_weights_are_used_for_sampling", "reports [0, 0, 0] for completions"),
    (SaysTheLatestVersion, "weight_version_is_correct_during_a_sync", "during which weights"),
    (TellsVersionsApartTooLate, "weight_version_is_correct_during_a_sync", "during which weights"),
    (ClosesOnce, "close_twice_works", "AssertionError"),
    (LeavesAVariable, "close_twice_works", "leaves environment variables"),
    (DrawsFromTheSharedGenerator, "close_twice_works", "leaves Python's random"),
]


@pytest.mark.long
@pytest.mark.parametrize(("engine", "test", "said"), CASES, ids=[f"{case[0].__name__}-{case[1]}" for case in CASES])
def test_contract_reports_the_mistake(
    engine: type[HostedEngine], test: str, said: str, complaint: Any, started: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_ENGINE", "no")
    session = started(engine)
    session.generate(Request((7, 8, 9), SamplingParams(max_tokens=2, seed=0), "one"))
    assert said in complaint(EngineContract, plugin(engine), test, given={"session": session})


def test_random_draws_of_other_code_are_ignored(complaint: Any, started: Start) -> None:
    session = started(Good)
    random.random()
    assert complaint(EngineContract, plugin(Good), "close_twice_works", given={"session": session}) == ""


@pytest.mark.parametrize(
    ("engine", "said"), [(TakesAnyWeights, "takes them when"), (RaisesOnStrangeWeights, "KeyError")]
)
def test_weights_of_a_different_model_are_reported(engine: type[HostedEngine], said: str, complaint: Any) -> None:
    assert said in complaint(EngineContract, plugin(engine), "weights_of_a_different_model_are_rejected")


def test_engine_that_starts_when_created_is_reported(complaint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllm_plugin_kit.surroundings.PATIENCE", 0.0)
    release = threading.Event()

    def make(params: NoParams) -> Good:
        threading.Thread(target=release.wait, daemon=True).start()
        return Good(params)

    said = complaint(EngineContract, plugin(make), "creation_starts_nothing")
    release.set()
    assert "starts threads when" in said


def test_engine_that_reads_the_model_later_cannot_start(started: Start) -> None:
    with pytest.raises(AssertionError, match="cannot be started"):
        started(ReadsTheDirectoryLater)


def test_declared_stop_texts_are_checked(complaint: Any, started: Start) -> None:
    record = replace(plugin(IgnoresStopTexts), stop_texts=True)
    given = {"session": started(IgnoresStopTexts)}
    said = complaint(EngineContract, record, "stop_text_ends_a_response_or_is_rejected", given=given)
    assert "with the stop" in said


@pytest.mark.long
def test_declared_unknown_log_probs_are_accepted(complaint: Any, started: Start) -> None:
    class Unknown(NoLogProbs):
        async def response(self, prompt: Any, sampling: SamplingParams, room: int) -> Any:
            known = await Good.response(self, prompt, sampling, room)
            cut = sampling.top_k > 0 or sampling.top_p < 1
            return await super().response(prompt, sampling, room) if cut else known

    record = replace(plugin(Unknown), full_logprobs=False)
    given = {"session": started(Unknown)}
    assert complaint(EngineContract, record, "log_probs_match_the_model", given=given) == ""
