"""Rollouts of TRL (``log_completions``) and verl (``rollout_data_dir``): a prompt, a response and its rewards per row.

A file contains the rollouts of one step, and neither tokens nor log-probs. These formats are only read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from rllm_core.notices import warn_once
from rllm_record.interchange.drafts import (
    RESPONSE,
    EpisodeDraft,
    JsonData,
    StepDraft,
    TrajectoryDraft,
    as_json_data,
    complete_draft,
    make_episode,
    text_of,
)
from rllm_record.interchange.formats import EpisodeFormat, first_object, read_objects
from rllm_record.steps.rows import RecordedEpisode

COMPLETIONS = "completions_*.parquet"
TRL = frozenset({"step", "prompt", "completion", "advantage"})
VERL = frozenset({"input", "output", "gts", "score", "step"})


def is_trl(path: Path) -> bool:
    """True if this is a file of completions of TRL, or a directory of such files."""
    import pyarrow.parquet as pq

    files = _files(path, COMPLETIONS)
    return bool(files) and files[0].match(COMPLETIONS) and set(pq.read_schema(files[0]).names) >= TRL


def read_trl(path: Path) -> list[RecordedEpisode]:
    """Return an episode for each completion. The reward is the sum of all columns with numbers.

    TRL writes the columns of ``log_extra`` after the rewards, without a mark. So a warning lists the columns.
    """
    import pyarrow.parquet as pq

    rows = [_trl_row(row) for file in _files(path, COMPLETIONS) for row in pq.read_table(file).to_pylist()]
    if summed := dict.fromkeys(name for row in rows for name in row["rewards"]):
        warn_once(
            f"{path}: the reward is the sum of the columns {', '.join(summed)}. The file contains no weights. Remove "
            "columns of log_extra that are numbers from it."
        )
    return _episodes(rows)


def _trl_row(row: JsonData) -> JsonData:
    others = {key: value for key, value in row.items() if key not in TRL}
    rewards = {key: float(value) for key, value in others.items() if _is_number(value)}
    prompt, completion = _messages(row["prompt"], "user"), _messages(row["completion"], "assistant")
    extra = {key: value for key, value in others.items() if key not in rewards}
    return {"step": row["step"], "prompt": prompt, "completion": completion, "rewards": rewards, "extra": extra} | (
        {"advantage": float(row["advantage"])} if _is_number(row["advantage"]) else {}
    )


def is_verl(path: Path) -> bool:
    """True if this is a file of verl's rollouts, or a directory of such files."""
    files = _files(path, "*.jsonl")
    return bool(files) and first_object(files[0]).keys() >= VERL


def read_verl(path: Path) -> list[RecordedEpisode]:
    """Return an episode for each rollout. The reward is ``score``."""
    return _episodes([_verl_row(row) for file in _files(path, "*.jsonl") for row in read_objects(file)])


def _verl_row(row: JsonData) -> JsonData:
    extra = {key: value for key, value in row.items() if key not in VERL - {"gts"}}
    return {
        "step": row["step"],
        "prompt": _messages(row["input"], "user"),
        "completion": _messages(row["output"], "assistant"),
        "rewards": {"score": float(row["score"])} if _is_number(row["score"]) else {},
        "extra": extra,
    }


def _files(path: Path, pattern: str) -> list[Path]:
    """Return the files of a directory in the order of their steps, or the file itself."""
    if not path.is_dir():
        return [path]
    found = sorted(path.glob(pattern), key=lambda file: (len(file.name), file.name))
    return found or sorted(path.glob(f"completions/{pattern}"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _messages(value: Any, role: str) -> list[JsonData]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return [_without_nulls(message) for message in as_json_data(value or [])]


def _without_nulls(value: Any) -> Any:
    """Return a value without null fields, because an object of Parquet has the keys of all objects in its column."""
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return value


def _episodes(rows: Sequence[JsonData]) -> list[RecordedEpisode]:
    """Return the episode of each row. Rows of a step with the same prompt are rollouts of a task."""
    tasks: dict[str, int] = {}
    seen: Counter[tuple[int, str]] = Counter()
    made = []
    for row in rows:
        prompt = "\n".join(text_of(message) for message in row["prompt"])
        name = f"prompt-{tasks.setdefault(prompt, len(tasks))}"
        draft = _draft(row, seen[row["step"], name])
        made.append(make_episode(complete_draft(draft, name, seen[row["step"], name])))
        seen[row["step"], name] += 1
    return made


def _draft(row: JsonData, number: int) -> EpisodeDraft:
    rewards: Mapping[str, float] = row["rewards"]
    reward = sum(rewards.values()) if rewards else None
    steps = _calls(row["prompt"], row["completion"])
    for step in steps:
        step.fields |= {"advantage": row["advantage"]} if "advantage" in row else {}
    info: JsonData = {"reward_components": dict(rewards)} if len(rewards) > 1 else {}
    info |= {"row": as_json_data(row["extra"])} if row["extra"] else {}
    trajectory = TrajectoryDraft({"name": "agent", "reward": reward, "info": info}, steps)
    solved = row["extra"].get("acc", reward is not None and reward > 0)
    return EpisodeDraft({"step": row["step"], "is_correct": bool(solved)}, [trajectory])


def _calls(prompt: Iterable[JsonData], completion: Iterable[JsonData]) -> list[StepDraft]:
    """Return a model call for each assistant message of the completion."""
    calls, messages = [], list(prompt)
    for message in completion:
        if message.get("role") != "assistant":
            messages.append(message)
            continue
        text = text_of(message)
        info = {} if message == {"role": "assistant", "content": text} else {RESPONSE: message}
        calls.append(StepDraft({"text": text, "info": info}, messages))
        messages = []
    return calls


TRL_FORMAT = EpisodeFormat(name="trl", title="completions of TRL", recognizes=is_trl, read=read_trl)
VERL_FORMAT = EpisodeFormat(name="verl", title="rollouts of verl", recognizes=is_verl, read=read_verl)
