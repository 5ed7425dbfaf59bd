"""Rollouts of NeMo-Gym (``ng_collect_rollouts``, ``gym eval run``): a task, a response and a reward per line.

A response contains the items of a whole conversation in OpenAI's Responses API. Items may have tokens and log-probs.
This format is only read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from rllm_core.data.types import TerminationReason
from rllm_record.interchange.drafts import (
    AFTER,
    EpisodeDraft,
    JsonData,
    TrajectoryDraft,
    is_token_list,
    make_episodes,
    split_calls,
)
from rllm_record.interchange.formats import EpisodeFormat
from rllm_record.interchange.json_files import first_object, read_objects
from rllm_record.interchange.rows import PromptNames, is_number
from rllm_record.steps.rows import RecordedEpisode

PARAMS = "responses_create_params"
FAILURE = "_ng_failure_class"
SHOWN = (PARAMS, "response", "reward")
GENERATED = ("reasoning", "message", "function_call")
"""Types of the items of a model's response, in their order."""
TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""Types of parts with text, each with its field."""


def is_nemo_gym(path: Path) -> bool:
    """True if this is a file of NeMo-Gym's rollouts."""
    return first_object(path).keys() >= {PARAMS, "response"}


def read(path: Path) -> Iterator[RecordedEpisode]:
    """Yield an episode for each rollout. Rollouts with the same agent and task number are rollouts of a task."""
    names = PromptNames()
    return make_episodes(_draft(row, names) for row in read_objects(path))


def _draft(row: JsonData, names: PromptNames) -> EpisodeDraft:
    params, response = row[PARAMS] or {}, row["response"] or {}
    before = [_message(group) for group in _groups(_input(params))]
    groups = [*_groups(_output(response))]
    calls, after = split_calls(
        [*((each, False) for each in before), *((_message(group), _is_generated(group[0])) for group in groups)]
    )
    for call, group in zip(calls, (group for group in groups if _is_generated(group[0])), strict=True):
        call.fields |= _tokens(group[-1])
    reward = float(row["reward"]) if is_number(row.get("reward")) else None
    error, reason = _outcome(row, response)
    others = {key: value for key, value in row.items() if key not in SHOWN}
    info: JsonData = {"nemo_gym": others | {"response": _without(response, "output")}}
    info |= {AFTER: after} if after else {}
    agent, number = (row.get("agent_ref") or {}).get("name", ""), row.get("_ng_task_index")
    fields = {
        "is_correct": reward is not None and reward > 0,
        "error": error,
        "termination_reason": reason.value,
        "task": _without(params, "input") or None,
    }
    name = names.name_of(calls[0].messages if calls else before) if number is None else f"{agent}/{number}"
    return EpisodeDraft(name, fields, [TrajectoryDraft({"name": "agent", "reward": reward, "info": info}, calls)])


def _without(data: JsonData, key: str) -> JsonData:
    """Return the other fields that are not null."""
    return {name: value for name, value in data.items() if name != key and value is not None}


def _outcome(row: JsonData, response: JsonData) -> tuple[str, TerminationReason]:
    """Return the error and the termination reason of a rollout."""
    failure = response.get("error") or {}
    error = str(row.get(FAILURE) or failure.get("message") or "")
    if error:
        return error, TerminationReason.ERROR
    if (response.get("incomplete_details") or {}).get("reason") == "max_output_tokens":
        return "", TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED
    return "", TerminationReason.ENV_DONE


def _input(params: JsonData) -> list[JsonData]:
    given = params.get("input") or []
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    return [{"role": "system", "content": params["instructions"]}, *items] if params.get("instructions") else items


def _output(response: JsonData) -> list[JsonData]:
    """Return the items of a response. Agents of aviary write the whole conversation of each turn, which is merged."""
    output: list[Any] = response.get("output") or []
    if not all(isinstance(each, list) for each in output):
        return output
    turns = zip([[], *output], output, strict=False)
    return [*chain.from_iterable(turn[len(last) :] if turn[: len(last)] == last else turn for last, turn in turns)]


def _groups(items: Iterable[JsonData]) -> Iterator[list[JsonData]]:
    """Yield the items of each message. A response's reasoning, text and function calls, in this order, are together.

    A response ends before an item that no model generated, and after an item with tokens.
    """
    group: list[JsonData] = []
    for item in items:
        if group and (not _is_generated(item) or _kind(item) < _kind(group[-1])):
            yield group
            group = []
        group.append(item)
        if not _is_generated(item) or "generation_token_ids" in item:
            yield group
            group = []
    if group:
        yield group


def _kind(item: JsonData) -> int:
    """Return the place of an item's type in `GENERATED`. -1: no model generates it."""
    kind = item.get("type") or "message"
    return GENERATED.index(kind) if kind in GENERATED else -1


def _is_generated(item: JsonData) -> bool:
    return _kind(item) >= 0 and item.get("role", "assistant") == "assistant"


def _message(group: list[JsonData]) -> JsonData:
    """Return a message as in OpenAI's chat API."""
    first, kind = group[0], group[0].get("type") or "message"
    if not _is_generated(first):
        if kind == "function_call_output":
            return {"role": "tool", "tool_call_id": first["call_id"], "content": _content(first["output"])}
        if kind == "message":
            return {"role": first["role"], "content": _content(first["content"])}
        return {"role": kind, "content": json.dumps(first, ensure_ascii=False)}
    parts = chain.from_iterable(_parts(item["content"]) for item in group if "role" in item)
    found: JsonData = {"role": "assistant", "content": _content([*parts])}
    thoughts = [*chain.from_iterable(_thoughts(item) for item in group if item.get("type") == "reasoning")]
    found |= {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
    calls = [_tool_call(item) for item in group if item.get("type") == "function_call"]
    return found | ({"tool_calls": calls} if calls else {})


def _thoughts(item: JsonData) -> list[str]:
    return [part["text"] for part in [*(item.get("summary") or ()), *(item.get("content") or ())]]


def _tool_call(item: JsonData) -> JsonData:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def _content(content: Any) -> Any:
    """Return content as a string if it has only one part with text. Otherwise return its parts."""
    parts = _parts(content)
    return "".join(part["text"] for part in parts) if [part["type"] for part in parts] in ([], ["text"]) else parts


def _parts(content: Any) -> list[JsonData]:
    """Return the parts of content as in OpenAI's chat API. Unknown parts do not change."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    parts = []
    for part in content or ():
        if part["type"] in TEXTS:
            parts.append({"type": "text", "text": part[TEXTS[part["type"]]]})
        elif part["type"] == "input_image" and isinstance(part.get("image_url"), str):
            parts.append({"type": "image_url", "image_url": {"url": part["image_url"]}})
        else:
            parts.append(part)
    return parts


def _tokens(item: JsonData) -> JsonData:
    """Return the tokens and log-probs of a call. Empty if they are missing, or cannot be used as a model call."""
    prompt, response = item.get("prompt_token_ids"), item.get("generation_token_ids")
    logprobs = item.get("generation_log_probs") or ()
    if not prompt or not response or not is_token_list(prompt) or not is_token_list(response):
        return {}
    usable = len(logprobs) == len(response) and all(map(is_number, logprobs))
    return {"prompt_ids": prompt, "response_ids": response, "logprobs": logprobs if usable else None}


FORMAT = EpisodeFormat(name="nemo_gym", title="rollouts of NeMo-Gym", recognizes=is_nemo_gym, read=read)
