"""vLLM's token route: token ids in, token ids and log-probs out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from gateway_clients import openai_of
from gateway_world import DEADLINE, World
from tool_tokenizer import STOP

from rllm_core.data.types import Step
from rllm_gateway.running.episodes import make_trajectories
from rllm_gateway.sessions.link import OpenedSession, PolicyError, SessionTrace

PROMPT = [ord(character) for character in "<u>hi<a>"]


class Client:
    """Posts to a session's token route."""

    def __init__(self, world: World, **changes: Any) -> None:
        self.world = world
        self.session: OpenedSession = world.open(**changes)
        self.http = httpx.Client(headers={"authorization": f"Bearer {self.session.key}"}, timeout=DEADLINE)

    def post(self, token_ids: Any, role: str = "agent", body: Any = (), **sampling: Any) -> httpx.Response:
        asked = {"model": "m", "token_ids": token_ids, "sampling_params": sampling, **dict(body)}
        return self.http.post(f"{self.session.url}/{role}/inference/v1/generate", json=asked)

    def sample(self, token_ids: Any, **options: Any) -> dict[str, Any]:
        answer = self.post(token_ids, **options)
        assert answer.status_code == 200, answer.text
        said: dict[str, Any] = answer.json()
        return said

    def next_ids(self, token_ids: list[int]) -> list[int]:
        """The prompt and its response."""
        return [*token_ids, *self.sample(token_ids)["choices"][0]["token_ids"]]

    def close(self) -> SessionTrace:
        return self.world.close(self.session)


@pytest.fixture
def client(world: World) -> Iterator[Client]:
    client = Client(world)
    yield client
    client.http.close()


def test_tokens_and_logprobs_are_those_of_the_row(client: Client, world: World) -> None:
    answer = client.sample(PROMPT, body={"request_id": "mine"}, logprobs=1, temperature=0.5, stop_token_ids=[STOP])
    (choice,) = answer["choices"]
    client.close()
    stored = world.store.session(client.session.id)
    (row,) = stored.calls
    assert stored.prompt_ids(row.id).tolist() == PROMPT
    assert choice["token_ids"] == row.response_ids.tolist() == [*map(ord, "hello"), STOP]
    content = choice["logprobs"]["content"]
    assert [each["logprob"] for each in content] == row.logprobs.tolist()
    assert [each["token"] for each in content] == [f"token_id:{token}" for token in choice["token_ids"]]
    assert (answer["request_id"], choice["finish_reason"]) == ("mine", "stop")
    assert answer["usage"]["prompt_tokens"] == len(PROMPT)
    assert row.outcomes["temperature"] == "overruled"
    assert row.delivered


def test_two_turns_are_one_row(client: Client, world: World) -> None:
    first = client.next_ids(PROMPT)
    second = [*first, *map(ord, "<u>more<a>")]
    whole = client.next_ids(second)
    trace = client.close()
    assert [call.parent for call in trace.calls] == [None, trace.calls[0].id]
    assert len({call.branch for call in world.policy.calls}) == 1
    (trajectory,) = trajectories(trace, world)
    assert trajectory.tokens.ids.tolist() == whole
    assert len(trajectory.tokens.segment_starts) == 1
    sampled = [False] * len(PROMPT) + [True] * 6 + [False] * 10 + [True] * 6
    assert trajectory.tokens.sampled.tolist() == sampled


def test_a_prompt_without_new_tokens_continues_its_row(client: Client, world: World) -> None:
    cut = [*PROMPT, *client.sample(PROMPT, max_tokens=2)["choices"][0]["token_ids"]]
    whole = client.next_ids(cut)
    trace = client.close()
    assert trace.calls[1].parent == trace.calls[0].id
    (trajectory,) = trajectories(trace, world)
    assert trajectory.tokens.ids.tolist() == whole


def test_an_edited_response_starts_a_new_row(client: Client, world: World) -> None:
    first = client.next_ids(PROMPT)
    client.next_ids([*first[:-2], ord("!"), *first[-1:], *PROMPT])
    client.sample([*first, *PROMPT], role="other")
    trace = client.close()
    assert [call.parent for call in trace.calls] == [None] * 3
    made = trajectories(trace, world)
    trained = sum(trajectory.response_length for trajectory in made)
    assert trained == sum(len(call.completion.token_ids) for call in world.policy.calls)


def test_tokens_continue_a_chat_call(client: Client, world: World) -> None:
    with openai_of(client.session) as chat:
        chat.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    call = world.policy.calls[0]
    client.sample([*call.prompt_ids.tolist(), *call.completion.token_ids.tolist(), *PROMPT])
    trace = client.close()
    assert trace.calls[1].parent == trace.calls[0].id


def trajectories(trace: SessionTrace, world: World) -> Any:
    steps = {
        call.call: Step(call.prompt_ids, call.completion.token_ids, call.completion.logprobs)
        for call in world.policy.calls
    }
    return make_trajectories(trace, steps, "t:0", 0).trajectories


def test_choices_limits_and_stop_strings(client: Client) -> None:
    cut = client.sample(PROMPT, n=2, max_tokens=2)["choices"]
    assert [(choice["index"], choice["logprobs"]) for choice in cut] == [(0, None), (1, None)]
    assert [(choice["token_ids"], choice["finish_reason"]) for choice in cut] == [([*map(ord, "he")], "length")] * 2
    (stopped,) = client.sample(PROMPT, stop=["ll"])["choices"]
    assert (stopped["token_ids"], stopped["finish_reason"]) == ([*map(ord, "hell")], "stop")
    assert len(client.close().calls) == 3


def test_top_logprobs_need_an_engine_with_them(client: Client, world: World) -> None:
    refused = client.post(PROMPT, logprobs=3)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_parameter")
    world.policy.options = frozenset(("top_logprobs",))
    (choice,) = client.sample(PROMPT, logprobs=3)["choices"]
    top = choice["logprobs"]["content"][0]["top_logprobs"]
    assert [(each["token"], each["logprob"]) for each in top] == [(f"token_id:{ord('h')}", -2.0)] * 3


@pytest.mark.parametrize(
    ("token_ids", "body", "sampling", "param"),
    [
        ([], {}, {}, "token_ids"),
        ("hi", {}, {}, "token_ids"),
        ([1, -1], {}, {}, "token_ids"),
        ([1, True], {}, {}, "token_ids"),
        ([1 << 31], {}, {}, "token_ids"),
        ([65], {"stream": True}, {}, "stream"),
        ([65], {"features": {"mm_hashes": {}}}, {}, "features"),
        ([65], {"unheard_of": 1}, {}, "unheard_of"),
        ([65], {"sampling_params": 1}, {}, "sampling_params"),
        ([65], {}, {"unheard_of": 1}, "unheard_of"),
        ([65], {}, {"ignore_eos": True}, "ignore_eos"),
        ([65], {}, {"prompt_logprobs": 1}, "prompt_logprobs"),
        ([65], {}, {"max_tokens": 0}, "max_tokens"),
        ([65], {}, {"logprobs": 21}, "logprobs"),
        ([65], {}, {"stop_token_ids": [STOP, 66]}, "stop_token_ids"),
    ],
)
def test_bad_fields_are_refused(client: Client, token_ids: Any, body: Any, sampling: Any, param: str) -> None:
    refused = client.post(token_ids, body=body, **sampling)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert not client.close().calls


def test_too_long_prompts_and_unknown_tokens_are_refused(client: Client, world: World) -> None:
    error = client.post([65] * world.policy.max_context).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "token_ids")

    def fail(prompt: str) -> str:
        raise PolicyError("no such token", "unknown_token")

    world.policy.response = fail
    refused = client.post([65])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "token_ids")
