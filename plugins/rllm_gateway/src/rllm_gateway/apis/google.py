"""Google's generateContent API: requests, answers and events.

Names of fields are in camel case. As Google's server, it also accepts them in snake case.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import orjson

from rllm_gateway.apis import fields
from rllm_gateway.apis.exchange import (
    REASONING,
    Choice,
    FinalText,
    ModelRequest,
    PendingResponse,
    SampledToken,
    SentText,
    event,
)
from rllm_gateway.apis.fields import Kind, MessageParts, RefusedError, Rules, invalid, reject_unless_ignored
from rllm_gateway.apis.structured import ResponseFormat, find_required_form

RULES = Rules(
    honored=frozenset(("contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "labels")),
    overruled=frozenset(("model",)),
    ignored=frozenset(("safetySettings", "serviceTier", "store")),
    refused={},
    held=frozenset(("cachedContent",)),
)
SCHEMAS = ("responseSchema", "responseJsonSchema", "_responseJsonSchema")
CONFIG_RULES = Rules(
    honored=frozenset(
        (
            "candidateCount",
            "logprobs",
            "maxOutputTokens",
            "responseLogprobs",
            "responseMimeType",
            "stopSequences",
            *SCHEMAS,
        )
    ),
    overruled=frozenset(("temperature", "topP", "topK", "seed", "presencePenalty", "frequencyPenalty")),
    # The run decides how long its model thinks. Only `includeThoughts` of `thinkingConfig` has an effect.
    ignored=frozenset(("audioTimestamp", "enableEnhancedCivicAnswers", "mediaResolution", "thinkingConfig")),
    refused={
        "audioTranscriptionConfig": (),
        "enableAffectiveDialog": (False,),
        "imageConfig": (),
        "modelSelectionConfig": (),
        "responseFormat": (),
        "responseModalities": ([], ["TEXT"], ["MODALITY_UNSPECIFIED"]),
        "routingConfig": (),
        "speechConfig": (),
        "translationConfig": (),
    },
)
"""Classes of the keys of ``generationConfig``."""
TOOL_RULES = Rules(honored=frozenset(("functionDeclarations",)), overruled=frozenset(), ignored=frozenset(), refused={})
FUNCTION_RULES = Rules(
    honored=frozenset(("name", "description", "parameters", "parametersJsonSchema")),
    overruled=frozenset(),
    ignored=frozenset(("response", "responseJsonSchema")),
    refused={"behavior": ("BLOCKING", "UNSPECIFIED")},
)
TOOL_CONFIG_RULES = Rules(
    honored=frozenset(("functionCallingConfig",)),
    overruled=frozenset(),
    ignored=frozenset(),
    refused={"includeServerSideToolInvocations": (False,), "retrievalConfig": ({},)},
)
CALLING_RULES = Rules(
    honored=frozenset(("mode", "allowedFunctionNames")),
    overruled=frozenset(),
    ignored=frozenset(),
    refused={"streamFunctionCallArguments": (False,)},
)
"""Classes of the keys of ``functionCallingConfig``."""
CALLING = "toolConfig.functionCallingConfig"
MODES = ("", "MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED")
"""In the last mode, calls would be constrained to their schemas. Clients send it by default, so it is ignored."""
PART_NOTES = frozenset(("mediaResolution", "partMetadata", "thought", "thoughtSignature", "videoMetadata"))
"""Keys of a part that describe its data."""
OUTPUT_KEYS = ("output", "result", "return_value")
"""Keys of a function's response that contain its whole output: Google's, its client's and pydantic-ai's."""


def _fields(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with its names in camel case, without null."""
    return {_camel(key): value for key, value in found.items() if value is not None}


def _camel(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])_([a-z])", lambda found: found[1].upper(), name)


def _object(found: Mapping[str, Any], key: str, where: str = "") -> dict[str, Any]:
    return _fields(fields.mapping(found, key, where))


def _objects(found: Mapping[str, Any], key: str, where: str = "") -> list[dict[str, Any]]:
    return [_fields(each) for each in fields.objects(found, key, where)]


def read(body: dict[str, Any], unsupported: Any) -> ModelRequest:
    """Read a request for a response.

    Raises:
        RefusedError: the request is not valid.
    """
    body = _fields(body)
    config = _object(body, "generationConfig")
    _object(config, "thinkingConfig", "generationConfig")
    outcomes = RULES.outcomes(body, unsupported) | CONFIG_RULES.outcomes(config, unsupported)
    tool_config = _object(body, "toolConfig")
    calling = _object(tool_config, "functionCallingConfig", "toolConfig")
    outcomes |= TOOL_CONFIG_RULES.outcomes(tool_config, unsupported) | CALLING_RULES.outcomes(calling, unsupported)
    tools = list[dict[str, Any]]()
    for at, tool in enumerate(_objects(body, "tools")):
        outcomes |= TOOL_RULES.outcomes(tool, unsupported)
        for number, function in enumerate(_objects(tool, "functionDeclarations", f"tools[{at}]")):
            outcomes |= FUNCTION_RULES.outcomes(function, unsupported)
            tools.append(_tool(function, f"tools[{at}].functionDeclarations[{number}]"))
    mode = fields.optional_text(calling, "mode", CALLING).upper()
    if mode not in MODES:
        reject_unless_ignored(f"{CALLING}.mode", unsupported)
    if mode not in MODES[:-1]:
        outcomes[f"{CALLING}.mode"] = "ignored"
    if mode != "ANY" and calling.get("allowedFunctionNames"):
        reject_unless_ignored(f"{CALLING}.allowedFunctionNames", unsupported)
    tools = [] if mode == "NONE" else tools
    reader = _Contents(unsupported, outcomes)
    reader.system(_object(body, "systemInstruction"))
    contents = _objects(body, "contents")
    for at, content in enumerate(contents):
        reader.add(content, f"contents[{at}]")
    if not contents:
        raise invalid("contents is empty; send at least one.", "contents")
    logprobs = fields.truth(config, "responseLogprobs")
    return ModelRequest(
        messages=reader.messages,
        prompt_parameter="contents",
        tools=tools,
        numbered_calls=True,
        response_format=_required_form(config, tools, _choose_tools(calling, tools) if mode == "ANY" else None),
        n=fields.read_count(config, "candidateCount"),
        max_tokens=fields.read_integer(config, "maxOutputTokens", 1, 1 << 31),
        stop=fields.stop_texts(config, "stopSequences"),
        logprobs=logprobs,
        top_logprobs=fields.read_top_logprobs(config, "logprobs") if logprobs else 0,
        metadata=fields.mapping(body, "labels"),
        sent={name: value for name, value in body.items() if name != "contents"},
        outcomes=outcomes,
    )


def read_count(body: dict[str, Any], unsupported: Any) -> ModelRequest:
    """Read a request for the number of tokens, which may contain a whole request for a response.

    Raises:
        RefusedError: the request is not valid.
    """
    return read(_object(_fields(body), "generateContentRequest") or body, unsupported)


def _choose_tools(calling: Mapping[str, Any], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools of which the model must call one."""
    allowed = fields.stop_texts(calling, "allowedFunctionNames", 1 << 10)
    known = {tool["function"]["name"]: tool for tool in tools}
    for name in allowed:
        if name not in known:
            where = f"{CALLING}.allowedFunctionNames"
            raise invalid(f"{where} has {name!r:.80}, which tools does not offer.", where)
    return [known[name] for name in allowed] or list(tools)


def _required_form(
    config: Mapping[str, Any], tools: Sequence[dict[str, Any]], called: Sequence[dict[str, Any]] | None
) -> ResponseFormat | None:
    """Return the required form of a response. `called`: the tools of which it must call one."""
    name = next((each for each in SCHEMAS if each in config), None)
    where = f"generationConfig.{name or 'responseMimeType'}"
    kind = fields.optional_text(config, "responseMimeType", "generationConfig") or "text/plain"
    if kind not in ("text/plain", "application/json") or (kind == "text/plain" and name is not None):
        where = "generationConfig.responseMimeType"
        raise invalid(f"{where} is {kind!r:.80}; use text/plain, or application/json with or without a schema.", where)
    schema = None
    if kind == "application/json":
        schema = {"type": "object"} if name is None else fields.mapping(config, name, "generationConfig")
        schema = _json_schema(schema) if name == SCHEMAS[0] else schema
    offered = tools if called is None else called
    return find_required_form(where, schema, offered, called is not None, None, f"{CALLING}.mode")


def _tool(function: Mapping[str, Any], where: str) -> dict[str, Any]:
    made: dict[str, Any] = {"name": fields.text(function, "name", where)}
    if description := fields.optional_text(function, "description", where):
        made["description"] = description
    whole = fields.mapping(function, "parametersJsonSchema", where)
    schema = whole or _json_schema(fields.mapping(function, "parameters", where))
    return {"type": "function", "function": made | {"parameters": schema}}


def _json_schema(schema: Any) -> Any:
    """Return the JSON schema of a schema in Google's form: types in upper case, ``nullable``, and numbers as text."""
    if not isinstance(schema, Mapping):
        return schema
    found = dict[str, Any]()
    for key, value in _fields(schema).items():
        match key, value:
            case "type", str():
                if value.upper() != "TYPE_UNSPECIFIED":
                    found["type"] = value.lower()
            case (("properties" | "defs" | "$defs"), Mapping()):
                named = {name: _json_schema(each) for name, each in value.items()}
                found[f"${key}" if key == "defs" else key] = named
            case (("items" | "additionalProperties"), _):
                found[key] = _json_schema(value)
            case (("anyOf" | "prefixItems"), list()):
                found[key] = [_json_schema(each) for each in value]
            case "ref", _:
                found["$ref"] = value
            case (("nullable" | "propertyOrdering" | "example"), _):
                pass
            case _, str() if re.fullmatch(r"(min|max)[A-Z]\w*", key) and value.isdigit():
                found[key] = int(value)
            case _:
                found[key] = value
    if schema.get("nullable") is True:
        return {"anyOf": [found, {"type": "null"}]}
    return found


class _Contents(MessageParts):
    """Reads contents. Contents of the model in a row are pieces of one response, because clients keep its stream so.

    Clients may omit the ids of calls. Then a call is identified by its number, and a result by the function's name.
    """

    parameter = "contents"
    text_keys: ClassVar = {}

    def __init__(self, unsupported: Any, outcomes: Any) -> None:
        super().__init__(unsupported, outcomes)
        self.messages = list[dict[str, Any]]()
        self._calls = 0
        self._unanswered = list[tuple[str, str]]()
        """Id and function name of calls without a result so far."""

    def system(self, content: Mapping[str, Any]) -> None:
        """Read the system instruction."""
        parts = _objects(content, "parts", "systemInstruction")
        words = [self._text(part, f"systemInstruction.parts[{at}]") for at, part in enumerate(parts)]
        if any(words):
            self.messages.append({"role": "system", "content": "".join(words)})

    def add(self, content: Mapping[str, Any], where: str) -> None:
        """Add the messages of a content to `messages`."""
        role = fields.optional_text(content, "role", where) or "user"
        if role not in ("user", "model", "function"):
            raise invalid(f"{where}.role is none of user and model.", f"{where}.role")
        parts = [(part, f"{where}.parts[{at}]") for at, part in enumerate(_objects(content, "parts", where))]
        if role == "model":
            self._model(parts)
        else:
            self._user(parts)

    def _user(self, parts: Sequence[tuple[dict[str, Any], str]]) -> None:
        words = list[str]()
        for part, where in parts:
            if "functionResponse" in part:
                self.messages.append(self._result(_object(part, "functionResponse", where), where))
            else:
                words.append(self._text(part, where))
        if words or not parts:
            self.messages.append({"role": "user", "content": "".join(words)})

    def _model(self, parts: Sequence[tuple[dict[str, Any], str]]) -> None:
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        message = self.messages[-1]
        for part, where in parts:
            if "functionCall" in part:
                call = self._call(_object(part, "functionCall", where), f"{where}.functionCall")
                message.setdefault("tool_calls", []).append(call)
            elif words := self._text(part, where):
                key = REASONING if part.get("thought") else "content"
                message[key] = message.get(key, "") + words

    def _call(self, call: Mapping[str, Any], where: str) -> dict[str, Any]:
        name = fields.text(call, "name", where)
        id_ = fields.optional_text(call, "id", where) or f"call_{self._calls}"
        self._calls += 1
        self._unanswered.append((id_, name))
        arguments = orjson.dumps(fields.mapping(call, "args", where)).decode()
        return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _result(self, result: Mapping[str, Any], where: str) -> dict[str, Any]:
        where = f"{where}.functionResponse"
        if result.get("parts"):
            self.leave_out("functionResponse.parts")
        name, given = fields.text(result, "name", where), fields.optional_text(result, "id", where)
        id_ = given or next((each for each, called in self._unanswered if called == name), None)
        if id_ is None:
            raise invalid(f"{where}.name is {name!r:.80}, which no call before has.", f"{where}.name")
        self._unanswered = [each for each in self._unanswered if each[0] != id_]
        output: Any = fields.mapping(result, "response", where)
        if len(output) == 1 and (key := next(iter(output))) in OUTPUT_KEYS:
            output = output[key]
        content = output if isinstance(output, str) else orjson.dumps(output).decode()
        return {"role": "tool", "tool_call_id": id_, "content": content}

    def _text(self, part: Mapping[str, Any], where: str) -> str:
        for key in part:
            if key != "text" and key not in PART_NOTES:
                self.leave_out(key)
        return fields.optional_text(part, "text", where)


STATUSES: dict[Kind, str] = {
    "invalid": "INVALID_ARGUMENT",
    "authentication": "UNAUTHENTICATED",
    "permission": "PERMISSION_DENIED",
    "not_found": "NOT_FOUND",
    "conflict": "FAILED_PRECONDITION",
    "too_large": "INVALID_ARGUMENT",
    "busy": "RESOURCE_EXHAUSTED",
    "failed": "INTERNAL",
}
FINISH = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP"}
GOOGLE_TYPES = "type.googleapis.com/google.rpc"


class GenerateApi:
    """See `Api`. Two instances serve the two paths, because the path says if a response is streamed."""

    def __init__(self, streamed: bool = False) -> None:
        self._streamed = streamed

    def read(self, body: dict[str, Any], unsupported: Any) -> ModelRequest:
        """See `read`."""
        return replace(read(body, unsupported), stream=self._streamed)

    def answer(self, request: ModelRequest, response: PendingResponse) -> bytes:
        """Return the body of a response."""
        parts = [_parts(request, choice, choice.tool_calls) for choice in response.choices]
        return orjson.dumps(_response(request, response, parts))

    def stream(self, request: ModelRequest, response: PendingResponse) -> GenerateStream:
        """Begin a streamed response."""
        return GenerateStream(request, response)

    @staticmethod
    def error(refused: RefusedError) -> bytes:
        """Return the body of an error."""
        return orjson.dumps(_error(refused))

    def error_event(self, refused: RefusedError) -> bytes:
        """Return the event that ends a stream with an error."""
        return event(_error(refused))


class GenerateStream:
    """See `EventStream`. The last event has the rest of the text, the calls of functions, and the usage."""

    def __init__(self, request: ModelRequest, response: PendingResponse) -> None:
        self._request = request
        self._response = response
        self._sent_text: defaultdict[int, SentText] = defaultdict(SentText)

    def add(self, index: int, final: FinalText) -> bytes:
        """Return the event with new text. Empty if there is none."""
        parts = _parts(self._request, self._sent_text[index].more(final))
        if not parts:
            return b""
        return event(_head(self._request, self._response) | {"candidates": [_candidate(index, parts)]})

    def end(self, response: PendingResponse) -> bytes:
        """Return the last event."""
        parts = [
            _parts(self._request, self._sent_text[index].more(choice), choice.tool_calls)
            for index, choice in enumerate(response.choices)
        ]
        return event(_response(self._request, response, parts))


def _error(refused: RefusedError) -> dict[str, Any]:
    details = list[dict[str, Any]]()
    if refused.code is not None:
        # Clients read the reason for an error from this field.
        details.append({"@type": f"{GOOGLE_TYPES}.ErrorInfo", "reason": refused.code, "domain": "rllm"})
    if refused.param is not None:
        wrong = {"field": refused.param, "description": refused.message}
        details.append({"@type": f"{GOOGLE_TYPES}.BadRequest", "fieldViolations": [wrong]})
    status = "UNAVAILABLE" if refused.status == 503 else STATUSES[refused.kind]
    error = {"code": refused.status, "message": refused.message, "status": status}
    return {"error": error | ({"details": details} if details else {})}


def _head(request: ModelRequest, response: PendingResponse) -> dict[str, Any]:
    return {"responseId": response.id, "modelVersion": request.model}


def _parts(
    request: ModelRequest, text: FinalText | Choice, tool_calls: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Return the parts of a response. It contains reasoning only if the client requested it."""
    parts = list[dict[str, Any]]()
    thinking = _object(_object(request.sent, "generationConfig"), "thinkingConfig")
    if text.reasoning and thinking.get("includeThoughts") is True:
        parts.append({"text": text.reasoning, "thought": True})
    if text.content:
        parts.append({"text": text.content})
    for call in tool_calls:
        name, arguments = call["function"]["name"], orjson.loads(call["function"]["arguments"])
        parts.append({"functionCall": {"id": call["id"], "name": name, "args": arguments}})
    return parts


def _candidate(index: int, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    # Clients drop a content without parts from the conversation.
    return {"content": {"role": "model", "parts": parts or [{"text": ""}]}, "index": index}


def _response(
    request: ModelRequest, response: PendingResponse, parts: Sequence[Sequence[dict[str, Any]]]
) -> dict[str, Any]:
    """Return a response, or the last event of a streamed response."""
    candidates = list[dict[str, Any]]()
    for index, choice in enumerate(response.choices):
        finish_fields: dict[str, Any] = {"finishReason": FINISH[choice.finish]}
        if request.logprobs:
            finish_fields["logprobsResult"] = _logprobs(choice)
        candidates.append(_candidate(index, parts[index]) | finish_fields)
    return _head(request, response) | {"candidates": candidates, "usageMetadata": _usage(response)}


def _logprobs(choice: Choice) -> dict[str, Any]:
    return {
        "chosenCandidates": [_token(each) for each in choice.sampled],
        "topCandidates": [{"candidates": [_token(other) for other in each.top]} for each in choice.sampled],
    }


def _token(token: SampledToken) -> dict[str, Any]:
    return {"token": token.text, "tokenId": token.id, "logProbability": token.known_logprob}


def _usage(response: PendingResponse) -> dict[str, Any]:
    reasoning_tokens = sum(each.reasoning_tokens for each in response.choices)
    return {
        "promptTokenCount": response.prompt_tokens,
        "cachedContentTokenCount": response.cached_tokens,
        "candidatesTokenCount": response.tokens - reasoning_tokens,
        "thoughtsTokenCount": reasoning_tokens,
        "totalTokenCount": response.prompt_tokens + response.tokens,
    }
