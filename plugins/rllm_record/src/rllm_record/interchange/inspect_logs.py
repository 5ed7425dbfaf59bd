"""Logs of inspect-ai in its JSON format. They contain messages and scores, and no tokens. This format is only read."""

from __future__ import annotations

import json
from collections import Counter
from math import isnan
from pathlib import Path
from typing import Any

from rllm_core.data.types import TerminationReason
from rllm_core.notices import say, warn_once
from rllm_record.interchange.drafts import (
    RESPONSE,
    EpisodeDraft,
    JsonData,
    StepDraft,
    TrajectoryDraft,
    complete_draft,
    make_episode,
    text_of,
)
from rllm_record.interchange.formats import EpisodeFormat, first_object, read_objects
from rllm_record.steps.rows import RecordedEpisode

GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Scores for correct, partly correct, incorrect and no answer."""
ATTACHMENT = "attachment://"
SHOWN = ("messages", "events", "events_data", "attachments", "scores", "id", "error")


def is_inspect(path: Path) -> bool:
    """True if this is a log of inspect-ai with samples."""
    found = first_object(path)
    return isinstance(found.get("samples"), list) and isinstance(found.get("eval"), dict) and "plan" in found


def read(path: Path) -> list[RecordedEpisode]:
    """Return an episode for each sample and epoch. The reward is the mean of its scores that are numbers or grades.

    Scores that are NaN are not part of the mean, and a line prints the number of samples that have them. Scores with
    several values, in a list or an object, are only in ``info``.
    """
    (log,) = read_objects(path)
    seen: Counter[str] = Counter()
    made = []
    for sample in map(_resolve_sample, log["samples"]):
        name = f"{log['eval']['task']}/{sample['id']}"
        made.append(make_episode(complete_draft(_draft(sample), name, seen[name])))
        seen[name] += 1
    if unknown := sum(any(map(isnan, _values(sample).values())) for sample in log["samples"]):
        say(f"{path}: {unknown} samples have scores that are NaN. Their rewards are the means of the other scores.")
    return made


def _resolve_sample(sample: JsonData) -> JsonData:
    """Return a sample whose references to attachments are replaced by their text. Missing ones are printed."""
    attachments = sample.get("attachments") or {}

    def resolve(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: resolve(each) for key, each in value.items()}
        if isinstance(value, list):
            return [resolve(each) for each in value]
        if not isinstance(value, str) or not value.startswith(ATTACHMENT):
            return value
        if (key := value.removeprefix(ATTACHMENT)) not in attachments:
            warn_once(f"Sample {sample['id']!r} has no attachment {key!r}, so its messages contain the reference.")
        return attachments.get(key, value)

    unused = ("events", "events_data", "attachments")
    return {key: resolve(value) for key, value in sample.items() if key not in unused}


def _values(sample: JsonData) -> dict[str, float]:
    """Return the scores of a sample that are numbers or grades, by name."""
    scores = {name: _number(score.get("value")) for name, score in (sample.get("scores") or {}).items()}
    return {name: value for name, value in scores.items() if value is not None}


def _draft(sample: JsonData) -> EpisodeDraft:
    values = _values(sample)
    known = [value for value in values.values() if not isnan(value)]
    reward = sum(known) / len(known) if known else None
    calls, after = _calls(sample)
    info: JsonData = {"inspect": {key: value for key, value in sample.items() if key not in SHOWN}}
    info["inspect"]["scores"] = sample.get("scores")
    info["inspect"] |= {"after": after} if after else {}
    info |= {"reward_components": values} if len(values) > 1 else {}
    error = (sample.get("error") or {}).get("message", "")
    fields = {
        "is_correct": reward is not None and reward > 0,
        "error": error,
        "termination_reason": (TerminationReason.ERROR if error else TerminationReason.ENV_DONE).value,
        "task": {"input": sample.get("input"), "target": sample.get("target")},
    }
    return EpisodeDraft(fields, [TrajectoryDraft({"name": "agent", "reward": reward, "info": info}, calls)])


def _number(value: Any) -> float | None:
    """Return a score as a number. None if it is neither a number nor a grade."""
    if isinstance(value, str):
        return GRADES.get(value)
    return float(value) if isinstance(value, bool | int | float) else None


def _calls(sample: JsonData) -> tuple[list[StepDraft], list[JsonData]]:
    """Return the model calls, and the messages after the last of them."""
    calls: list[StepDraft] = []
    messages: list[JsonData] = []
    for message in sample["messages"]:
        found = _message(message)
        if message["role"] == "assistant" and message.get("source") != "input":
            text = text_of(found)
            info = {} if found == {"role": "assistant", "content": text} else {RESPONSE: found}
            calls.append(StepDraft({"text": text, "info": info}, messages))
            messages = []
        else:
            messages.append(found)
    return calls, messages


def _message(message: JsonData) -> JsonData:
    """Return a message as in OpenAI's chat API. A part with reasoning becomes the message's reasoning."""
    content = message["content"]
    parts = content if isinstance(content, list) else []
    reasoning = [part.get("reasoning", "") for part in parts if part.get("type") == "reasoning"]
    found: JsonData = {"role": message["role"], "content": content}
    if parts:
        found["content"] = [part for part in parts if part.get("type") != "reasoning"]
    found |= {"reasoning_content": "\n".join(reasoning)} if reasoning else {}
    if message.get("tool_calls"):
        found["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
    return found | ({"tool_call_id": message["tool_call_id"]} if message.get("tool_call_id") else {})


def _tool_call(call: JsonData) -> JsonData:
    function = {"name": call["function"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)}
    return {"id": call["id"], "type": "function", "function": function}


FORMAT = EpisodeFormat(name="inspect", title="JSON logs of inspect-ai", recognizes=is_inspect, read=read)
