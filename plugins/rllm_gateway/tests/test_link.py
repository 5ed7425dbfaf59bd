"""The link between trainer and gateway, both ends over a socket pair, and stop texts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from expecting import expect_error

from rllm_core.contracts.engine import Completion, SamplingParams, TopTokens
from rllm_core.data.version_spans import VersionSpan
from rllm_core.errors import BackendError, RolloutError, UnsupportedSamplingError
from rllm_gateway.sampling.link_trainer import RolloutSampler, TrainerLink, cut_at_texts, first_spans
from rllm_gateway.sessions.link import (
    FRAMES,
    Failure,
    LinkPolicy,
    OpenedSession,
    PolicyError,
    SessionSpec,
    SessionTrace,
    TracedCall,
    Transcript,
    completion_as_json,
    completion_of,
)

TRACE = SessionTrace(
    id="t:0~0",
    calls=(TracedCall(id="c1", parent=None, role="agent", name=None, group=None, delivered=True),),
    rewards={"agent": 0.5},
    counters={"retries": 1},
    ending="closed",
    transcript=Transcript(messages=[{"role": "user", "content": "hi"}], tools=[{"type": "function"}]),
)


class Engine:
    """Answers with the prompt's tokens, one more each, unless `answer` says otherwise."""

    max_context = 60

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], SamplingParams, str]] = []
        self.ended: list[str] = []
        self.answer: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)
        self.renderer = SimpleNamespace(text=lambda ids: "".join(chr(token) for token in ids))

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        self.asked.append(([*map(int, prompt_ids)], sampling, session))
        await self.answer()
        ids = np.asarray(prompt_ids, np.int32) + 1
        logprobs = np.full(len(ids), np.nan, np.float32)
        spans = (VersionSpan(2, 1), VersionSpan(3, len(ids) - 1)) if len(ids) > 1 else ()
        return Completion(
            token_ids=ids, logprobs=logprobs, finish_reason="length", weight_version=2, version_spans=spans
        )

    async def end_session(self, session: str) -> None:
        self.ended.append(session)


class Keeper:
    """Opens anything, and closes it with `TRACE`."""

    def __init__(self) -> None:
        self.specs: list[SessionSpec] = []
        self.closed: list[str] = []
        self.failure: Exception | None = None

    async def open_session(self, spec: SessionSpec) -> OpenedSession:
        if self.failure:
            raise self.failure
        self.specs.append(spec)
        return OpenedSession(id=spec.id, key="k", url=f"http://127.0.0.1:1/s/{spec.id}")

    async def close_session(self, session: str) -> SessionTrace:
        self.closed.append(session)
        return TRACE


class Ends:
    def __init__(self, trainer: TrainerLink, policy: LinkPolicy, keeper: Keeper, serving: asyncio.Task[None]) -> None:
        self.trainer, self.policy, self.keeper, self.serving = trainer, policy, keeper, serving
        self.engine = Engine()
        self.sampler = self.make_sampler(engine_stops=False)

    def make_sampler(self, *, engine_stops: bool) -> RolloutSampler:
        sampling = SamplingParams(max_tokens=40, seed=5)
        return RolloutSampler(self.engine, sampling, "t:0", max_prompt_length=200, engine_stops=engine_stops)

    async def open(self) -> OpenedSession:
        spec = SessionSpec(id="t:0~0", run="r", rollout="t:0", max_tokens=9, metadata={"n": 1})
        return await self.trainer.open_session(spec, self.sampler)

    async def sample(
        self, ids: list[int], stop: tuple[str, ...] = (), call: str = "c1", branch: str = "b1", **options: Any
    ) -> Completion:
        sampling = SamplingParams(max_tokens=9, stop=stop, **options)
        return await self.policy.sample(np.array(ids, np.int32), sampling, session="t:0~0", call=call, branch=branch)


@asynccontextmanager
async def linked() -> AsyncIterator[Ends]:
    ours, theirs = socket.socketpair()
    keeper = Keeper()
    policy = LinkPolicy(*await asyncio.open_connection(sock=theirs), keeper)
    serving = asyncio.create_task(policy.serve())
    trainer = TrainerLink(*await asyncio.open_connection(sock=ours))
    try:
        yield Ends(trainer, policy, keeper, serving)
    finally:
        await trainer.close()
        await serving


def over_the_link(check: Callable[[Ends], Awaitable[None]]) -> Callable[[], None]:
    """Return a test that calls `check` with both ends of a link."""

    async def run() -> None:
        async with linked() as ends:
            await check(ends)

    return lambda: asyncio.run(run())


@over_the_link
async def test_sessions_are_opened_and_closed_by_the_trainer(ends: Ends) -> None:
    opened = await ends.open()
    assert opened.openai_url("judge") == "http://127.0.0.1:1/s/t:0~0/judge/v1"
    assert [spec.metadata for spec in ends.keeper.specs] == [{"n": 1}]
    assert await ends.trainer.close_session("t:0~0") == TRACE


@over_the_link
async def test_what_is_sampled_arrives_as_it_was_sampled(ends: Ends) -> None:
    await ends.open()
    arrived = await ends.sample([1, 2, 3])
    kept = ends.sampler.calls["c1"]
    assert arrived.token_ids.tolist() == kept.response_ids.tolist() == [2, 3, 4]
    assert np.isnan(arrived.logprobs).all()
    assert arrived.version_spans == (VersionSpan(2, 1), VersionSpan(3, 2))
    assert kept.prompt_ids.tolist() == [1, 2, 3]


@over_the_link
async def test_every_branch_has_its_own_engine_session(ends: Ends) -> None:
    await ends.open()
    await ends.sample([1])
    await ends.sample([2], call="c2", branch="b2")
    assert [session for _, _, session in ends.engine.asked] == ["t:0/b1", "t:0/b2"]
    await ends.sampler.close()
    assert ends.engine.ended == ["t:0/b1", "t:0/b2"]


@over_the_link
async def test_stop_text_cuts_if_engine_cannot_stop(ends: Ends) -> None:
    await ends.open()
    arrived = await ends.sample([ord(letter) - 1 for letter in "ab|cd"], stop=("|",))
    assert (arrived.token_ids.tolist(), arrived.finish_reason) == ([*map(ord, "ab|")], "stop")
    assert ends.sampler.cut_tokens == 2
    assert ends.engine.asked[0][1].stop == ()


@over_the_link
async def test_an_engine_that_stops_is_given_the_texts(ends: Ends) -> None:
    ends.sampler = ends.make_sampler(engine_stops=True)
    await ends.open()
    await ends.sample([1, 2], stop=("|",))
    assert ends.engine.asked[0][1].stop == ("|",)


@pytest.mark.parametrize(
    ("error", "kind"),
    [(RolloutError("made-up", "no", "hint"), "error"), (BackendError("made-up", "gone"), "gone")],
)
def test_an_engine_that_fails_fails_the_call(error: Exception, kind: Failure) -> None:
    @over_the_link
    async def check(ends: Ends) -> None:
        await ends.open()
        ends.engine.answer = failing(error)
        with pytest.raises(PolicyError) as caught:
            await ends.sample([1])
        assert caught.value.failure == kind
        assert (ends.sampler.backend_error is error) == (kind == "gone")

    check()


@over_the_link
async def test_schema_reaches_the_engine_and_its_refusal_returns(ends: Ends) -> None:
    await ends.open()
    await ends.sample([1, 2], json_schema="{}", top_logprobs=2)
    assert (ends.engine.asked[0][1].json_schema, ends.engine.asked[0][1].top_logprobs) == ("{}", 2)
    ends.engine.answer = failing(UnsupportedSamplingError("made-up", "no", "Do without."))
    with pytest.raises(PolicyError) as caught:
        await ends.sample([1, 2], json_schema="{}")
    assert caught.value.failure == "unsupported"


def failing(error: Exception) -> Callable[[], Awaitable[None]]:
    async def answer() -> None:
        raise error

    return answer


def test_frames_return_equal_completions() -> None:
    ids, logprobs = np.arange(3, dtype=np.int32), np.array([np.nan, -0.25, 0], np.float32)
    top = TopTokens(np.arange(6, dtype=np.int32).reshape(3, 2), np.full((3, 2), -1.5, np.float32))
    sent = Completion(token_ids=ids, logprobs=logprobs, finish_reason="stop", weight_version=1, top=top)
    frame = FRAMES.load(FRAMES.dump({"text": "ü", **completion_as_json(sent)}))
    assert frame.pop("text") == "ü"
    back = completion_of(frame)
    assert back.top is not None
    for one, other in ((back.top.ids, top.ids), (back.top.logprobs, top.logprobs), (back.token_ids, ids)):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(back.logprobs, logprobs)


@over_the_link
async def test_a_prompt_without_room_is_refused(ends: Ends) -> None:
    await ends.open()
    with pytest.raises(PolicyError, match=r"60 .* 59") as caught:
        await ends.sample([1] * 60)
    assert caught.value.failure == "too_long"
    assert ends.sampler.too_long == 1
    assert not ends.engine.asked
    await ends.sample([1] * 59)
    assert ends.engine.asked[0][1].max_tokens == 1


def waiting_for(go: list[asyncio.Event]) -> Callable[[], Awaitable[None]]:
    """Answers each call of the engine when its event is set."""

    async def wait() -> None:
        go.append(asyncio.Event())
        await go[-1].wait()

    return wait


async def until(truth: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not truth():
            await asyncio.sleep(0)


@over_the_link
async def test_repeated_call_can_be_cancelled_too(ends: Ends) -> None:
    begun, ended = [], []

    async def wait() -> None:
        begun.append("call")
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("call")

    await ends.open()
    ends.engine.answer = wait
    for times in (1, 2):
        call = asyncio.create_task(ends.sample([1]))
        await until(lambda times=times: len(begun) == times)
        call.cancel()
        await asyncio.sleep(0)
    await until(lambda: len(ended) == 2)
    assert not ends.sampler.calls


@over_the_link
async def test_tokens_of_cancelled_calls_are_counted(ends: Ends) -> None:
    begun = asyncio.Event()

    async def stream_two_and_wait() -> None:
        on_tokens = ends.engine.asked[-1][1].on_tokens
        assert on_tokens is not None, "tokens are counted also if the client does not stream"
        for token in (7, 8):
            on_tokens(np.array([token], np.int32))
        begun.set()
        await asyncio.sleep(3600)

    await ends.open()
    ends.engine.answer = stream_two_and_wait
    call = asyncio.create_task(ends.sample([1], stop=("|",)))
    await begun.wait()
    assert ends.sampler.cancelled_tokens == 0
    call.cancel()
    await until(lambda: ends.sampler.cancelled_tokens == 2)
    assert not ends.sampler.calls


@over_the_link
async def test_what_is_trained_on_is_what_was_delivered(ends: Ends) -> None:
    go: list[asyncio.Event] = []
    await ends.open()
    ends.engine.answer = waiting_for(go)
    first = asyncio.create_task(ends.sample([1]))
    await until(lambda: len(go) == 1)
    # The response of the first is on its way when it is given up.
    go[0].set()
    await until(lambda: ends.sampler.calls)
    first.cancel()
    second = asyncio.create_task(ends.sample([5]))
    await until(lambda: len(go) == 2)
    go[1].set()
    delivered = await second
    assert delivered.token_ids.tolist() == ends.sampler.calls["c1"].response_ids.tolist() == [6]
    assert len(ends.sampler.calls) == 2


@over_the_link
async def test_a_trainer_that_hangs_up_ends_what_waits(ends: Ends) -> None:
    begun = asyncio.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.sleep(3600)

    await ends.open()
    ends.engine.answer = wait
    call = asyncio.create_task(ends.sample([1]))
    await begun.wait()
    await ends.trainer.close()
    for waiting in (call, ends.sample([1])):
        with pytest.raises(PolicyError) as caught:
            await waiting
        assert caught.value.failure == "gone"


@over_the_link
async def test_cancelled_open_closes_the_session(ends: Ends) -> None:
    opening = asyncio.create_task(ends.open())
    while not ends.keeper.specs:
        await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert ends.keeper.closed == ["t:0~0"]


def test_a_gateway_that_ends_is_a_backend_error() -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        policy = LinkPolicy(*await asyncio.open_connection(sock=theirs), Keeper())
        trainer = TrainerLink(*await asyncio.open_connection(sock=ours))
        await policy._trainer.close()
        ends = Ends(trainer, policy, Keeper(), asyncio.create_task(asyncio.sleep(0)))
        with expect_error(BackendError, "gateway-ended", "open"):
            await ends.open()
        await trainer.close()

    asyncio.run(run())


def test_end_of_gateway_kills_the_agent() -> None:
    killed: list[str] = []

    async def agent() -> str:
        try:
            await asyncio.sleep(3600)
        finally:
            killed.append("agent")
        return "never"

    async def run() -> None:
        ours, theirs = socket.socketpair()
        policy = LinkPolicy(*await asyncio.open_connection(sock=theirs), Keeper())
        link = TrainerLink(*await asyncio.open_connection(sock=ours), log_tail=lambda: "out of memory")
        assert await link.run_unless_stopped(asyncio.sleep(0, "done")) == "done"
        running = asyncio.create_task(link.run_unless_stopped(agent()))
        await asyncio.sleep(0)
        await policy._trainer.close()
        with expect_error(BackendError, "gateway-ended") as caught:
            await running
        assert caught.value.details == "out of memory"
        await link.close()

    asyncio.run(run())
    assert killed == ["agent"]


@over_the_link
async def test_what_the_gateway_refuses_is_said(ends: Ends) -> None:
    ends.keeper.failure = ValueError("two of one id")
    with expect_error(BackendError, "gateway-failed", "ValueError"):
        await ends.open()


@pytest.mark.parametrize("data", [b"\x02\0\0\0[]", b"\x02\0\0\0{}", b"\x05\0\0\0"])
def test_link_bad_bytes_are_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        FRAMES.load(data)


def text_of(ids: object) -> str:
    return "".join(chr(token) for token in np.asarray(ids).tolist())


def completion(text: str, spans: tuple[VersionSpan, ...] = ()) -> Completion:
    return Completion(
        token_ids=np.array([ord(character) for character in text], np.int32),
        logprobs=-np.arange(len(text), dtype=np.float32),
        finish_reason="length",
        weight_version=min((span.version for span in spans), default=3),
        version_spans=spans,
    )


@pytest.mark.parametrize(
    ("text", "stop", "left"),
    [
        ("ab\nOb c", ("\nOb",), "ab\nOb"),
        ("a.b,c", (",", "."), "a."),
        ("x", ("x",), "x"),
        ("aSTOPSTOP", ("STOP",), "aSTOP"),
    ],
)
def test_token_that_completes_the_text_is_last(text: str, stop: tuple[str, ...], left: str) -> None:
    cut = cut_at_texts(completion(text), text_of, stop)
    assert text_of(cut.token_ids) == left
    assert cut.logprobs.tolist() == [-float(place) for place in range(len(left))]
    assert cut.finish_reason == "stop"


@pytest.mark.parametrize("stop", [(), ("never",)])
def test_response_without_the_text_is_unchanged(stop: tuple[str, ...]) -> None:
    whole = completion("some words")
    assert cut_at_texts(whole, text_of, stop) is whole


def test_oldest_version_is_from_the_remaining_tokens() -> None:
    spans = (VersionSpan(4, 3), VersionSpan(2, 5))
    cut = cut_at_texts(completion("ab|defgh", spans), text_of, ("|",))
    assert (cut.weight_version, cut.version_spans) == (4, (VersionSpan(4, 3),))


def test_first_spans_cover_the_requested_tokens() -> None:
    spans = (VersionSpan(1, 2), VersionSpan(2, 4))
    assert first_spans(spans, 3) == (VersionSpan(1, 2), VersionSpan(2, 1))
    assert first_spans((), 3) == ()
