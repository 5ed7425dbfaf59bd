"""Google's generateContent as its JSON is documented. `tests/clients` runs Google's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from gateway_world import CALL, DEADLINE, World, running
from text_tokenizers import END_THINK, renderer_of_bytes

HI: Any = [{"role": "user", "parts": [{"text": "hi"}]}]
PARAMETERS: Any = {"type": "OBJECT", "properties": {"word": {"type": "STRING"}}}
TOOLS: Any = [{"functionDeclarations": [{"name": "look_up", "parameters": PARAMETERS}]}]


class Client:
    """Posts to a session's paths for Google's clients."""

    def __init__(self, world: World, **changes: Any) -> None:
        self.world = world
        self.session = world.open(**changes)
        self.http = httpx.Client(headers={"x-goog-api-key": self.session.key}, timeout=DEADLINE)

    def post(self, method: str = "generateContent", version: str = "v1beta", **body: Any) -> httpx.Response:
        url = f"{self.session.anthropic_url()}/{version}/models/gemini:{method}"
        return self.http.post(url, json={"contents": HI} | body)

    def ask(self, **body: Any) -> dict[str, Any]:
        answer = self.post(**body)
        assert answer.status_code == 200, answer.text
        said: dict[str, Any] = answer.json()
        return said

    def stream(self, **body: Any) -> list[dict[str, Any]]:
        answer = self.post("streamGenerateContent?alt=sse", **body)
        lines = [line for line in answer.text.splitlines() if line]
        return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.fixture
def client(world: World) -> Iterator[Client]:
    client = Client(world)
    yield client
    client.http.close()


def test_a_response_has_text_and_usage(client: Client, world: World) -> None:
    said = client.ask(systemInstruction={"parts": [{"text": "be kind"}]}, generationConfig={"topK": 3})
    assert said["modelVersion"] == "gemini"
    assert said["candidates"] == [
        {"content": {"role": "model", "parts": [{"text": "hello"}]}, "index": 0, "finishReason": "STOP"}
    ]
    assert said["usageMetadata"] == {
        "promptTokenCount": len("<s>be kind<u>hi<a>"),
        "cachedContentTokenCount": 0,
        "candidatesTokenCount": len("hello$"),
        "thoughtsTokenCount": 0,
        "totalTokenCount": len("<s>be kind<u>hi<a>hello$"),
    }
    assert world.policy.calls[0].prompt == "<s>be kind<u>hi<a>"
    client.world.close(client.session)
    [row] = world.store.session(client.session.id).calls
    assert row.outcomes["topK"] == "overruled"


def test_limits_stops_and_candidates(client: Client, world: World) -> None:
    cut = client.ask(generationConfig={"maxOutputTokens": 2, "candidateCount": 2})
    texts = [(each["content"]["parts"][0]["text"], each["finishReason"]) for each in cut["candidates"]]
    assert texts == [("he", "MAX_TOKENS")] * 2
    [stopped] = client.ask(generation_config={"stop_sequences": ["ll"]})["candidates"]
    assert (stopped["content"]["parts"], stopped["finishReason"]) == ([{"text": "he"}], "STOP")
    assert len(world.policy.calls) == 3


def test_logprobs_belong_to_the_sampled_tokens(client: Client, world: World) -> None:
    world.policy.options = frozenset(("top_logprobs",))
    [candidate] = client.ask(generationConfig={"responseLogprobs": True, "logprobs": 2})["candidates"]
    found = candidate["logprobsResult"]
    sampled = world.policy.calls[0].completion
    assert [each["tokenId"] for each in found["chosenCandidates"]] == sampled.token_ids.tolist()
    assert [each["logProbability"] for each in found["chosenCandidates"]] == sampled.logprobs.tolist()
    assert [len(each["candidates"]) for each in found["topCandidates"]] == [2] * len(sampled.token_ids)


@pytest.mark.parametrize(("ids", "streamed"), [("kept", True), ("no id in results", False), ("no ids", True)])
def test_a_call_and_its_result_are_one_row(client: Client, world: World, ids: str, streamed: bool) -> None:
    world.policy.response = lambda prompt: "done" if "<t>" in prompt else f"wait{CALL}"
    answer = client.stream(tools=TOOLS)[-1] if streamed else client.ask(tools=TOOLS)
    content = answer["candidates"][0]["content"]
    text, part = content["parts"]
    call = part["functionCall"]
    assert (text, call["name"], call["args"]) == ({"text": "wait"}, "look_up", {"word": "proof"})
    result = {"name": "look_up", "id": call["id"], "response": {"output": "a proof"}}
    if ids != "kept":
        del result["id"]
    if ids == "no ids":
        del call["id"]
    # Clients keep each piece of a streamed response as a separate content.
    pieces = [{"role": "model", "parts": [each]} for each in content["parts"]]
    client.ask(contents=[*HI, *pieces, {"role": "user", "parts": [{"functionResponse": result}]}], tools=TOOLS)
    first, second = world.policy.calls
    assert second.prompt == f"{first.prompt}wait{CALL}$<t>a proof<a>"
    trace = world.close(client.session)
    assert [each.parent for each in trace.calls] == [None, trace.calls[0].id]


def test_results_without_ids_belong_to_calls_in_order(client: Client, world: World) -> None:
    calls = [{"functionCall": {"name": name}} for name in ("a", "b", "a")]
    results = [{"functionResponse": {"name": name, "response": {"n": at}}} for at, name in enumerate(("b", "a", "a"))]
    client.ask(contents=[*HI, {"role": "model", "parts": calls}, {"role": "user", "parts": results}])
    world.close(client.session)
    [row] = world.store.session(client.session.id).calls
    assert [each.get("tool_call_id") for each in row.messages[-3:]] == ["call_1", "call_0", "call_2"]
    assert [each["content"] for each in row.messages[-3:]] == ['{"n":0}', '{"n":1}', '{"n":2}']


@pytest.mark.parametrize("wants", [False, True])
def test_reasoning_is_sent_on_request(wants: bool, tmp_path: Any) -> None:
    with running(tmp_path, attached=lambda: renderer_of_bytes(thinks=True)) as thinking:
        thinking.policy.response = lambda prompt: f"why{chr(END_THINK)}because"
        client = Client(thinking)
        config = {"thinkingConfig": {"includeThoughts": wants, "thinkingBudget": 5}}
        said = client.ask(generationConfig=config)
        client.http.close()
    [candidate] = said["candidates"]
    reasoning = [{"text": "why", "thought": True}] if wants else []
    assert candidate["content"]["parts"] == [*reasoning, {"text": "because"}]
    assert said["usageMetadata"]["thoughtsTokenCount"] == len("why.")


@pytest.mark.parametrize(
    ("key", "schema"),
    [
        ("responseSchema", {"type": "OBJECT", "properties": {"n": {"type": "INTEGER", "nullable": True}}}),
        ("responseSchema", {"type": "object", "properties": {"n": {"type": "integer", "nullable": True}}}),
        (
            "responseJsonSchema",
            {"type": "object", "properties": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}},
        ),
    ],
)
def test_schemas_of_both_forms_are_one_json_schema(client: Client, world: World, key: str, schema: Any) -> None:
    world.policy.options = frozenset(("json_schema",))
    client.ask(generationConfig={"responseMimeType": "application/json", key: schema})
    assert world.policy.schemas == [
        {"type": "object", "properties": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}
    ]


def test_a_required_call_has_a_schema(client: Client, world: World) -> None:
    refused = client.post(tools=TOOLS, toolConfig={"functionCallingConfig": {"mode": "ANY"}})
    assert field_of(refused) == "toolConfig.functionCallingConfig.mode"
    world.policy.options = frozenset(("json_schema",))
    world.policy.response = lambda prompt: '{"name": "look_up", "arguments": {}}'
    other = {"name": "other", "parametersJsonSchema": {"type": "object"}}
    tools = [*TOOLS, {"functionDeclarations": [other]}]
    calling = {"mode": "ANY", "allowedFunctionNames": ["look_up"]}
    said = client.ask(tools=tools, toolConfig={"functionCallingConfig": calling})
    [part] = said["candidates"][0]["content"]["parts"]
    assert (part["functionCall"]["name"], part["functionCall"]["args"]) == ("look_up", {})
    [schema] = world.policy.schemas
    assert schema["properties"]["name"] == {"const": "look_up"}
    assert schema["properties"]["arguments"] == {"type": "object", "properties": {"word": {"type": "string"}}}


def test_more_functions_than_stop_strings_are_allowed(client: Client, world: World) -> None:
    world.policy.options = frozenset(("json_schema",))
    world.policy.response = lambda prompt: '{"name": "f3", "arguments": {}}'
    names = [f"f{number}" for number in range(40)]
    tools = [{"functionDeclarations": [{"name": name, "parametersJsonSchema": {"type": "object"}} for name in names]}]

    said = client.ask(
        tools=tools, toolConfig={"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": names[:30]}}
    )

    assert said["candidates"][0]["content"]["parts"][0]["functionCall"]["name"] == "f3"


def test_tokens_are_counted_and_calls_need_tools(client: Client, world: World) -> None:
    client.ask(tools=TOOLS, toolConfig={"functionCallingConfig": {"mode": "NONE"}})
    assert world.policy.calls[0].prompt == "<u>hi<a>"
    whole = {"contents": HI, "systemInstruction": {"parts": [{"text": "be kind"}]}}
    assert client.post("countTokens").json() == {"totalTokens": len("<u>hi<a>")}
    counted = client.post("countTokens", generateContentRequest=whole, contents=None).json()
    assert counted == {"totalTokens": len("<s>be kind<u>hi<a>")}


def field_of(refused: httpx.Response) -> str:
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")
    [field] = [each["fieldViolations"][0]["field"] for each in error["details"] if "fieldViolations" in each]
    return str(field)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"contents": []}, "contents"),
        ({"contents": [{"role": "system", "parts": [{"text": "a"}]}]}, "contents[0].role"),
        ({"contents": [{"parts": [{"inlineData": {"data": "aGk="}}]}]}, "contents.inlineData"),
        (
            {"contents": [{"parts": [{"functionResponse": {"name": "x"}}]}]},
            "contents[0].parts[0].functionResponse.name",
        ),
        ({"cachedContent": "cachedContents/1"}, "cachedContent"),
        ({"unheard_of": 1}, "unheardOf"),
        ({"tools": [{"googleSearch": {}}]}, "googleSearch"),
        ({"tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0].name"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "OTHER"}}}, "toolConfig.functionCallingConfig.mode"),
        (
            {"toolConfig": {"functionCallingConfig": {"mode": "VALIDATED", "allowedFunctionNames": ["x"]}}},
            "toolConfig.functionCallingConfig.allowedFunctionNames",
        ),
        (
            {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["x"]}}},
            "toolConfig.functionCallingConfig.allowedFunctionNames",
        ),
        ({"generationConfig": {"responseModalities": ["IMAGE"]}}, "responseModalities"),
        ({"generationConfig": {"maxOutputTokens": 0}}, "maxOutputTokens"),
        ({"generationConfig": {"unheardOf": 1}}, "unheardOf"),
        ({"generationConfig": {"responseSchema": {}}}, "generationConfig.responseMimeType"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "generationConfig.responseMimeType"),
    ],
)
def test_bad_fields_are_refused(client: Client, world: World, body: Any, field: str) -> None:
    assert field_of(client.post(**body)) == field
    assert not world.policy.calls


def test_errors_have_googles_form(client: Client, world: World) -> None:
    client.http.headers["x-goog-api-key"] = "wrong"
    assert client.post().json()["error"]["status"] == "UNAUTHENTICATED"
    assert client.post(version="v1").json()["error"]["status"] == "UNAUTHENTICATED"
    assert client.post("embedContent").json()["error"]["status"] == "NOT_FOUND"
