"""Engines that are wrong in one way each, and what the contract tells their authors.

`tests/contract/test_engines.py` runs the contract on their base class, which has no mistake.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from local_backend import HostedCopy, ScoringCopy

from rllm_core.contracts import Completion, EnginePlugin, EngineSetup, NamedTensors, NoParams, SamplingParams
from rllm_plugin_kit import EngineContract
from rllm_plugin_kit.engine_session import EngineSession, Request

from .conftest import later, vary

NUMBERS = itertools.count()
Asked = tuple[Any, SamplingParams]


class Altered(HostedCopy):
    """Changes what the engine is asked, or what it answers."""

    def ask(self, prompt: list[int], sampling: SamplingParams) -> Asked:
        return prompt, sampling

    def answer(self, done: Completion, sampling: SamplingParams) -> Completion:
        return done

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        asked = self.ask(list(prompt_ids), sampling)
        return self.answer(await super().generate(*asked, session=session), sampling)


def asking(change: Callable[[SamplingParams], dict[str, Any]]) -> type[Altered]:
    """Return an engine that samples with these changes."""
    return vary(Altered, ask=lambda _, prompt, sampling: (prompt, replace(sampling, **change(sampling))))


def asking_the_last(tokens: int) -> type[Altered]:
    """Return an engine that samples after the last tokens of the prompt."""
    return vary(Altered, ask=lambda _, prompt, sampling: (prompt[-tokens:], sampling))


def answering(change: Callable[[Completion, SamplingParams], dict[str, Any]]) -> type[Altered]:
    """Return an engine whose completions have these changes."""
    return vary(Altered, answer=lambda _, done, sampling: replace(done, **change(done, sampling)))


def off_if(condition: Callable[[SamplingParams], bool]) -> type[Altered]:
    """Return an engine whose log-probs are wrong with such a sampling."""
    return answering(
        lambda done, sampling: {"logprobs": done.logprobs - np.float32(0.1) if condition(sampling) else done.logprobs}
    )


def unknown_if(condition: Callable[[SamplingParams], bool]) -> type[Altered]:
    """Return an engine without log-probs with such a sampling."""
    return answering(
        lambda done, sampling: {
            "logprobs": np.full_like(done.logprobs, np.nan) if condition(sampling) else done.logprobs
        }
    )


def truncates(sampling: SamplingParams) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1


def without_stop_token(done: Completion, _: SamplingParams) -> dict[str, Any]:
    kept = slice(None, -1) if done.finish_reason == "stop" and len(done.token_ids) > 1 else slice(None)
    return {"token_ids": done.token_ids[kept], "logprobs": done.logprobs[kept], "version_spans": ()}


class KnowsItsSessions(HostedCopy):
    sessions: frozenset[str] = frozenset()

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        self.sessions |= {session}
        return await super().generate(prompt_ids, sampling, session=session)

    async def end_session(self, session: str) -> None:
        if session not in self.sessions:
            raise KeyError(session)
        self.sessions -= {session}


class RaisesAnything(Altered):
    def ask(self, prompt: list[int], sampling: SamplingParams) -> Asked:
        assert len(prompt) < self.max_context
        return prompt, sampling


class KeepsTheFirstWeights(HostedCopy):
    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        if version:
            self.engine.sync_weights(version)
        else:
            await super().load_weights(weights, version)


class SharesTheTensors(HostedCopy):
    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        named = dict(weights)
        for name, parameter in self.model.named_parameters():
            parameter.data = named[name]
        self.engine.sync_weights(version)


class LoadsDuringResponses(Altered):
    """Loads weights between the first and the second token of the running requests."""

    loading: asyncio.Event | None = None

    def ask(self, prompt: list[int], sampling: SamplingParams) -> Asked:
        return prompt, replace(sampling, on_tokens=self.look)

    def look(self, tokens: Any) -> None:
        if self.loading is not None:
            self.engine.pause()
            self.loading.set()

    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        if self.engine._waiting:
            self.loading = asyncio.Event()
            await self.loading.wait()
            self.loading = None
        await super().load_weights(weights, version)


class SaysTheLatestVersion(LoadsDuringResponses):
    def answer(self, done: Completion, sampling: SamplingParams) -> Completion:
        return replace(done, weight_version=self.engine.weight_version, version_spans=())


class TellsVersionsApartTooLate(LoadsDuringResponses):
    def answer(self, done: Completion, sampling: SamplingParams) -> Completion:
        if len(done.version_spans) < 2 or done.version_spans[1].tokens < 2:
            return done
        first, second = done.version_spans
        spans = (first._replace(tokens=first.tokens + 1), second._replace(tokens=second.tokens - 1))
        return replace(done, version_spans=spans)


class TakesAnyWeights(HostedCopy):
    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        self.model.load_state_dict(dict(weights), strict=False)
        self.engine.sync_weights(version)


class RaisesOnStrangeWeights(HostedCopy):
    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        named = dict(weights)
        await super().load_weights({name: named[name] for name, _ in self.model.named_parameters()}.items(), version)


class ClosesOnce(HostedCopy):
    async def close(self) -> None:
        assert self.calls[-1] != "close"
        await super().close()


class LeavesAVariable(HostedCopy):
    async def start(self, setup: EngineSetup) -> None:
        os.environ["MY_ENGINE"] = "running"
        await super().start(setup)


class DrawsFromTheSharedGenerator(Altered):
    def ask(self, prompt: list[int], sampling: SamplingParams) -> Asked:
        random.random()
        return prompt, sampling


class ReadsTheDirectoryLater(HostedCopy):
    async def start(self, setup: EngineSetup) -> None:
        self.setup = setup

    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        await super().start(self.setup)


IgnoresStopTexts = asking(lambda _: {"stop": ()})
NeverTheSeed = asking(lambda _: {"seed": next(NUMBERS)})


def plugin(make: Any, **fields: Any) -> EnginePlugin[Any]:
    given: dict[str, Any] = {"name": "mine", "summary": "For tests.", "stop_texts": True}
    return EnginePlugin(**given | {"load": lambda: make} | fields)


Start = Callable[[type[HostedCopy]], EngineSession]


@pytest.fixture
def started() -> Iterator[Start]:
    """Starts engines as their contract does; what a test leaves open is closed."""
    sessions: list[EngineSession] = []

    def start(make: type[HostedCopy]) -> EngineSession:
        tests = type("Tests", (EngineContract,), {"record": lambda self: plugin(make)})
        sessions.append(tests().start({}))
        return sessions[-1]

    yield start
    for session in sessions:
        if not session.closed:
            with suppress(AssertionError):
                session.close()


FINISH, LOGPROBS = "finish_reason_matches_the_tokens", "log_probs_match_the_model"
LIKELIEST, SEED = "greedy_and_top_k_sample_likeliest_tokens", "tokens_depend_only_on_prompt_and_seed"
CONTEXT, STOP = "full_context_ends_a_response_or_is_rejected", "stop_text_ends_a_response_or_is_rejected"
WEIGHTS, VERSION = "new_weights_are_used_for_sampling", "weight_version_is_correct_during_a_sync"
SCORES = "scores_and_digests_are_the_models"
CASES: Sequence[tuple[type[HostedCopy], str, str]] = [
    (answering(without_stop_token), FINISH, "'stop'"),
    (answering(lambda *_: {"finish_reason": "length"}), FINISH, "'length'"),
    (off_if(lambda sampling: sampling.top_k > 0), LOGPROBS, "'top_k'"),
    (off_if(lambda sampling: 0 < sampling.temperature < 1), LOGPROBS, "'temperature'"),
    (unknown_if(lambda _: True), LOGPROBS, "reports no log-probs"),
    (asking(lambda _: {"top_k": -1}), LIKELIEST, "not among the"),
    (asking(lambda _: {"temperature": 1.0}), LIKELIEST, "not among the"),
    (NeverTheSeed, SEED, "when other requests"),
    (asking(lambda _: {"seed": 1}), SEED, "samples the same"),
    (asking_the_last(5), "each_turn_sees_the_whole_conversation", "in turn 1"),
    (KnowsItsSessions, "any_session_can_be_ended", "KeyError"),
    (asking_the_last(100), CONTEXT, "where its context"),
    (RaisesAnything, CONTEXT, "AssertionError"),
    (NeverTheSeed, "a_cancelled_request_does_not_change_others", "samples different tokens"),
    (IgnoresStopTexts, STOP, "with the stop"),
    (KeepsTheFirstWeights, WEIGHTS, "after new weights"),
    (SharesTheTensors, WEIGHTS, "after new weights"),
    (answering(lambda *_: {"weight_version": 0, "version_spans": ()}), WEIGHTS, "reports [0, 0, 0] for completions"),
    (SaysTheLatestVersion, VERSION, "during which weights"),
    (TellsVersionsApartTooLate, VERSION, "during which weights"),
    (vary(ScoringCopy, score=later(lambda *_: {"one": np.zeros(4, np.float32)})), SCORES, "and the model with"),
    (
        vary(ScoringCopy, digests=later(lambda *_: {"model.norm.weight": "00"})),
        SCORES,
        "as the digest of model.norm.weight",
    ),
    (ClosesOnce, "close_twice_works", "AssertionError"),
    (LeavesAVariable, "close_twice_works", "leaves environment variables"),
    (DrawsFromTheSharedGenerator, "close_twice_works", "leaves Python's random"),
]


@pytest.mark.long
@pytest.mark.parametrize(("engine", "test", "said"), CASES)
def test_contract_reports_the_mistake(
    engine: type[HostedCopy], test: str, said: str, complaint: Any, started: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_ENGINE", "no")
    session = started(engine)
    session.generate(Request((7, 8, 9), SamplingParams(max_tokens=2, seed=0), "one"))
    assert said in complaint(EngineContract, plugin(engine), test, given={"session": session})


def test_engine_with_right_scores_and_digests_passes(complaint: Any, started: Start) -> None:
    assert complaint(EngineContract, plugin(ScoringCopy), SCORES, given={"session": started(ScoringCopy)}) == ""


def test_random_draws_of_other_code_are_ignored(complaint: Any, started: Start) -> None:
    session = started(HostedCopy)
    random.random()
    assert complaint(EngineContract, plugin(HostedCopy), "close_twice_works", given={"session": session}) == ""


@pytest.mark.parametrize(
    ("engine", "said"), [(TakesAnyWeights, "takes them when"), (RaisesOnStrangeWeights, "KeyError")]
)
def test_weights_of_a_different_model_are_reported(engine: type[HostedCopy], said: str, complaint: Any) -> None:
    assert said in complaint(EngineContract, plugin(engine), "weights_of_a_different_model_are_rejected")


def test_engine_that_starts_when_created_is_reported(complaint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllm_plugin_kit.process_state.PATIENCE", 0.0)
    release = threading.Event()

    def make(params: NoParams) -> HostedCopy:
        threading.Thread(target=release.wait, daemon=True).start()
        return HostedCopy(params)

    said = complaint(EngineContract, plugin(make), "creation_starts_nothing")
    release.set()
    assert "starts threads when" in said


def test_engine_that_reads_the_model_later_cannot_start(started: Start) -> None:
    with pytest.raises(AssertionError, match="cannot be started"):
        started(ReadsTheDirectoryLater)


def test_undeclared_stop_texts_are_reported(complaint: Any, started: Start) -> None:
    record, given = plugin(HostedCopy, stop_texts=False), {"session": started(HostedCopy)}
    assert "ignores a stop" in complaint(EngineContract, record, STOP, given=given)


@pytest.mark.long
def test_an_engine_may_tell_versions_apart(complaint: Any, started: Start) -> None:
    given = {"session": started(LoadsDuringResponses)}
    assert complaint(EngineContract, plugin(LoadsDuringResponses), VERSION, given=given) == ""


@pytest.mark.long
def test_declared_unknown_log_probs_are_accepted(complaint: Any, started: Start) -> None:
    unknown = unknown_if(truncates)
    given = {"session": started(unknown)}
    assert complaint(EngineContract, plugin(unknown, full_logprobs=False), LOGPROBS, given=given) == ""
