"""Logs of inspect-ai, ``.eval`` and ``.json``: messages and scores, and no tokens. This format is only read.

An ``.eval`` log is a zip file with a JSON member for each sample, compressed with Zstandard. Older logs are compressed
with Deflate, which Python reads by itself.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from math import isfinite, isnan
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZipFile, ZipInfo, is_zipfile

from rllm_core.data.types import TerminationReason
from rllm_core.notices import say, warn_once
from rllm_record.interchange.drafts import AFTER, EpisodeDraft, JsonData, TrajectoryDraft, make_episodes, split_calls
from rllm_record.interchange.formats import EpisodeFormat
from rllm_record.interchange.json_files import JsonText, first_object
from rllm_record.steps.rows import RecordedEpisode

GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Scores for correct, partly correct, incorrect and no answer."""
ANSWERS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""Scores that may have any case."""
ATTACHMENT = "attachment://"
UNUSED = ("events", "events_data", "attachments", "timelines")
SHOWN = ("messages", "scores", "id", "error")
REASONS = {
    "time": TerminationReason.TIMEOUT,
    "working": TerminationReason.TIMEOUT,
    "message": TerminationReason.MAX_TURNS_EXCEEDED,
    "token": TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED,
    "context": TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED,
}
"""Termination reason for a type of limit."""
HEADERS = ("header.json", "_journal/start.json")
"""Members of an ``.eval`` log with the task's name. A log has only the second one until its evaluation ends."""
ZSTANDARD = 93
"""Compression method of a zip file's member that Python before 3.14 does not read."""


def is_inspect(path: Path) -> bool:
    """True if this is a log of inspect-ai."""
    if path.suffix == ".eval":
        return path.is_file() and is_zipfile(path) and _has_header(path)
    return first_object(path).keys() >= {"version", "status", "eval"}


def _has_header(path: Path) -> bool:
    with ZipFile(path) as archive:
        return not {*HEADERS}.isdisjoint(archive.namelist())


def read(path: Path) -> Iterator[RecordedEpisode]:
    """Yield an episode for each sample and epoch. The reward is the mean of its scores that are numbers or grades.

    Scores that are NaN are not part of the mean, and a line prints the number of samples that have them. Scores with
    several values, in a list or an object, are only in ``info``.
    """
    unknown = 0

    def drafts() -> Iterator[EpisodeDraft]:
        nonlocal unknown
        for task, sample in _read_archive(path) if path.suffix == ".eval" else _read_json(path):
            unknown += any(map(isnan, _values(sample).values()))
            yield _draft(task, _resolve_sample(sample))

    yield from make_episodes(drafts())
    if unknown:
        say(f"{path}: {unknown} samples have scores that are NaN. Their rewards are the means of the other scores.")


Samples = Iterator[tuple[str, JsonData]]
"""Samples, each with the name of its task."""


def _read_json(path: Path) -> Samples:
    log = JsonText(path.read_text(encoding="utf-8"))
    task = log.field("eval")["task"]
    if any(key == "samples" for key, _ in log.fields()):
        yield from ((task, sample) for sample in log.items("samples") or ())


def _read_archive(path: Path) -> Samples:
    with path.open("rb") as file, ZipFile(file) as archive:
        # A sample that was written again has a second member with the same name, which is used.
        members = {each.filename: each for each in archive.infolist()}
        header = next(members[name] for name in HEADERS if name in members)
        task = _read_member(archive, file, header)["eval"]["task"]
        for name, member in members.items():
            if name.startswith("samples/") and name.endswith(".json"):
                yield task, _read_member(archive, file, member)


def _read_member(archive: ZipFile, file: BinaryIO, member: ZipInfo) -> JsonData:
    """Return the object of a member.

    Raises:
        ValueError: its text is damaged.
    """
    if member.compress_type != ZSTANDARD:
        return dict(json.loads(archive.read(member)))
    import pyarrow as pa

    # The lengths of the member's name and of extra data are at bytes 26 and 28 of its header, which has 30 bytes.
    file.seek(member.header_offset + 26)
    name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
    file.seek(name + extra, 1)
    with pa.CompressedInputStream(pa.BufferReader(file.read(member.compress_size)), "zstd") as stream:
        text = stream.read()
    if zlib.crc32(text) != member.CRC:
        raise ValueError(f"member {member.filename} is damaged")
    return dict(json.loads(text))


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

    return {key: resolve(value) for key, value in sample.items() if key not in UNUSED}


def _values(sample: JsonData) -> dict[str, float]:
    """Return the scores of a sample that are numbers or grades, by name."""
    scores = {name: _number(score.get("value")) for name, score in (sample.get("scores") or {}).items()}
    return {name: value for name, value in scores.items() if value is not None}


def _number(value: Any) -> float | None:
    """Return a score as a number, like inspect-ai's ``value_to_float``. None if it is neither a number nor a grade."""
    if isinstance(value, bool | int | float):
        return float(value)
    if not isinstance(value, str):
        return None
    known = GRADES | {value: ANSWERS[value.lower()]} if value.lower() in ANSWERS else GRADES
    try:
        number = float(value)
    except ValueError:
        return known.get(value)
    return number if isfinite(number) else None


def _draft(task: str, sample: JsonData) -> EpisodeDraft:
    values = _values(sample)
    known = [value for value in values.values() if not isnan(value)]
    reward = sum(known) / len(known) if known else None
    messages = ((each, _message(each)) for each in sample["messages"])
    calls, after = split_calls(
        (message, each["role"] == "assistant" and each.get("source") != "input") for each, message in messages
    )
    info: JsonData = {"inspect": {key: value for key, value in sample.items() if key not in SHOWN}}
    info["inspect"]["scores"] = sample.get("scores")
    info |= {AFTER: after} if after else {}
    info |= {"reward_components": values} if len(values) > 1 else {}
    error = (sample.get("error") or {}).get("message", "")
    limit = sample.get("limit")
    reason = REASONS.get(limit["type"], TerminationReason.UNKNOWN) if limit else TerminationReason.ENV_DONE
    fields = {
        "is_correct": reward is not None and reward > 0,
        "error": error,
        "termination_reason": (TerminationReason.ERROR if error else reason).value,
        "task": {"input": sample.get("input"), "target": sample.get("target")},
    }
    trajectory = TrajectoryDraft({"name": "agent", "reward": reward, "info": info}, calls)
    return EpisodeDraft(f"{task}/{sample['id']}", fields, [trajectory])


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
    return found | {key: message[key] for key in ("tool_call_id", "error") if message.get(key)}


def _tool_call(call: JsonData) -> JsonData:
    function = {"name": call["function"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)}
    return {"id": call["id"], "type": "function", "function": function}


FORMAT = EpisodeFormat(name="inspect", title="logs of inspect-ai", recognizes=is_inspect, read=read)
