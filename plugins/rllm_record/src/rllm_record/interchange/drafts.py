"""Drafts: episodes as JSON data, which the modules of formats return for the objects of a file.

Values that our episodes do not have are in `info` of a trajectory or step, and in messages, under the format's name.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rllm_core.data.messages import read_text
from rllm_core.data.types import Episode, Step, TerminationReason, Trajectory
from rllm_core.data.version_spans import VersionSpan
from rllm_record.steps.rows import RecordedEpisode, RecordedTrajectory

RESPONSE = "response"
"""Key of `Step.info`: the assistant message of a response that has more than its text, as in OpenAI's chat API."""
AFTER = "after"
"""Key of `Trajectory.info`: the messages after the last model call."""
JsonData = dict[str, Any]


@dataclass
class StepDraft:
    """A model call. `fields` are keyword arguments of `Step` as JSON data. An unknown log-prob is None."""

    fields: JsonData
    messages: list[JsonData] = field(default_factory=list)


@dataclass
class TrajectoryDraft:
    """A trajectory. `fields` are fields of `RecordedTrajectory`, and of `Trajectory` with its uid as ``own_uid``."""

    fields: JsonData
    steps: list[StepDraft] = field(default_factory=list)


@dataclass
class EpisodeDraft:
    """An episode. `fields` are fields of `Episode` and of `RecordedEpisode`. Missing fields have default values."""

    name: str
    """The task. Empty if the file does not name it."""
    fields: JsonData
    trajectories: list[TrajectoryDraft] = field(default_factory=list)


class TaskNumbers:
    """Number of rollouts of each task in a file so far. The default id of an episode is its task and this number."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._total = 0

    def complete(self, draft: EpisodeDraft) -> EpisodeDraft:
        """Add default values of missing fields to the draft of the next episode."""
        draft.name = draft.name or f"task-{self._total}"
        return _complete(draft, f"{draft.name}:{self._seen[draft.name]}")

    def count(self, draft: EpisodeDraft) -> None:
        """Count a complete draft."""
        self._seen[draft.name] += 1
        self._total += 1


def make_episodes(drafts: Iterable[EpisodeDraft]) -> Iterator[RecordedEpisode]:
    """Yield the episodes of a file's drafts. Each draft is made when it is needed."""
    numbers = TaskNumbers()
    for draft in drafts:
        yield _make_episode(numbers.complete(draft))
        numbers.count(draft)


def _complete(draft: EpisodeDraft, name: str) -> EpisodeDraft:
    episode = {
        "id": name,
        "step": 0,
        "batch": 0,
        "is_correct": False,
        "termination_reason": TerminationReason.UNKNOWN.value,
        "metrics": {},
        "data_source": "default",
        "error": "",
        "task": None,
    } | draft.fields
    draft.fields = {"uid": f"{episode['step']}.{episode['batch']}:{episode['id']}"} | episode
    for place, trajectory in enumerate(draft.trajectories):
        found: JsonData = {"own_uid": f"{episode['id']}/{place}", "uid": f"{draft.fields['uid']}/{place}", "name": ""}
        found |= {"reward": None, "reward_used": None, "info": {}} | trajectory.fields
        trajectory.fields = {"reward_given": found["reward"]} | found
        for step in trajectory.steps:
            complete_step(step)
    return draft


def complete_step(step: StepDraft) -> JsonData:
    """Add default values of missing fields to a model call, and return its fields."""
    step.fields = {
        "prompt_ids": [],
        "response_ids": [],
        "logprobs": None,
        "reward": None,
        "advantage": None,
        "text": "",
        "weight_version": 0,
        "version_spans": [],
        "info": {},
    } | step.fields
    return step.fields


def _make_episode(draft: EpisodeDraft) -> RecordedEpisode:
    """Return the episode of a complete draft."""
    fields = draft.fields
    made = [_make_trajectory(each) for each in draft.trajectories]
    return RecordedEpisode(
        uid=fields["uid"],
        step=fields["step"],
        batch=fields["batch"],
        task=fields["task"],
        trajectories=tuple(made),
        episode=Episode(
            id=fields["id"],
            trajectories=[each.trajectory for each in made],
            is_correct=fields["is_correct"],
            termination_reason=TerminationReason(fields["termination_reason"]),
            metrics=fields["metrics"],
            data_source=fields["data_source"],
            error=fields["error"],
        ),
    )


def _make_trajectory(draft: TrajectoryDraft) -> RecordedTrajectory:
    fields = draft.fields
    steps = [_make_step(each) for each in draft.steps]
    trajectory = Trajectory(fields["name"], steps, fields["reward"], uid=fields["own_uid"], info=fields["info"])
    return RecordedTrajectory(
        uid=fields["uid"],
        trajectory=trajectory,
        reward_given=fields["reward_given"],
        reward_used=fields["reward_used"],
    )


def _make_step(draft: StepDraft) -> Step:
    values = dict(draft.fields)
    logprobs, versions = values.pop("logprobs"), values.pop("version_spans")
    known = None if logprobs is None else [np.nan if value is None else value for value in logprobs]
    spans = [VersionSpan(*span) for span in versions]
    return Step(logprobs=known, version_spans=spans, messages=draft.messages, **values)


def text_of(response: Mapping[str, Any]) -> str:
    """Return the text of an assistant message, with its reasoning and its tool calls."""
    reasoning, content = response.get("reasoning_content"), read_text(response)
    parts = [] if reasoning is None else [f"<think>\n{reasoning}\n</think>"]
    parts += [content] if content or not response.get("tool_calls") else []
    for call in response.get("tool_calls") or ():
        function = {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        parts.append(f"<tool_call>\n{json.dumps(function, ensure_ascii=False)}\n</tool_call>")
    return "\n".join(parts)


def response_fields(response: JsonData) -> JsonData:
    """Return the fields of a step with a response: its text, and the whole message in `info` if it has more."""
    text = text_of(response)
    return {"text": text, "info": {} if response == {"role": "assistant", "content": text} else {RESPONSE: response}}


def split_calls(messages: Iterable[tuple[JsonData, bool]]) -> tuple[list[StepDraft], list[JsonData]]:
    """Return a model call for each response, and the messages after the last response.

    Args:
        messages: messages in their order, each with True if the model generated it in this episode.
    """
    calls: list[StepDraft] = []
    before: list[JsonData] = []
    for message, is_response in messages:
        if is_response:
            calls.append(StepDraft(response_fields(message), before))
            before = []
        else:
            before.append(message)
    return calls, before


def as_json_data(value: Any) -> Any:
    """Return a copy of a value as JSON data. Other values become their `repr`."""
    return json.loads(json.dumps(value, default=repr))


def is_token_list(ids: Any) -> bool:
    """True if this is a list of ids that an int32 can represent."""
    return isinstance(ids, list) and all(type(each) is int and -(2**31) <= each < 2**31 for each in ids)
