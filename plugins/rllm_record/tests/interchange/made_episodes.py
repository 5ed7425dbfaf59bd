"""Hypothesis strategies of episodes with tools, turns, branches, missing values and content in parts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rllm_core.data.types import Episode, Step, TerminationReason, Trajectory
from rllm_core.data.version_spans import VersionSpan
from rllm_record.steps import RecordedEpisode, RecordedTrajectory

texts = st.text(max_size=8)
numbers = st.floats(-1e6, 1e6) | st.sampled_from([float("nan"), float("inf"), float("-inf")])
names = st.text("abc_", min_size=1, max_size=4)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | numbers | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)
ids = st.lists(st.integers(0, 200_000), max_size=4)
arguments = st.dictionaries(names, json_values, max_size=2).map(json.dumps) | texts
tool_calls = st.builds(
    lambda number, name, value: {"id": number, "type": "function", "function": {"name": name, "arguments": value}},
    names,
    names,
    arguments,
)
parts = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, texts),
    st.sampled_from(["https://a/b.png", "https://a/b.tiff", "data:image/png;base64,AAAA"]).map(
        lambda url: {"type": "image_url", "image_url": {"url": url}}
    ),
    st.just({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
)
contents = texts | st.lists(parts, max_size=3)
messages = st.one_of(
    st.builds(lambda role, content: {"role": role, "content": content}, st.sampled_from(["system", "user"]), contents),
    st.builds(lambda call, content: {"role": "tool", "tool_call_id": call, "content": content}, names, contents),
    st.builds(lambda content: {"role": "tool", "content": content}, contents),
    st.builds(
        lambda content, calls: {"role": "assistant", "content": content, "tool_calls": calls},
        st.none() | contents,
        st.lists(tool_calls, min_size=1, max_size=2),
    ),
    st.builds(lambda content, more: {"role": "user", "content": content, "name": more}, texts, json_values),
)


@st.composite
def responses(draw: Any) -> dict[str, Any]:
    response: dict[str, Any] = {"role": "assistant", "content": draw(st.none() | contents)}
    if draw(st.booleans()):
        response["reasoning_content"] = draw(texts)
    if draw(st.booleans()):
        response["tool_calls"] = draw(st.lists(tool_calls, min_size=1, max_size=2))
    return response


@st.composite
def steps(draw: Any, before: list[int]) -> Step:
    """A step whose prompt often extends the tokens before it."""
    prompt = (before if draw(st.booleans()) else []) + draw(ids)
    response = draw(ids) if prompt else []
    logprob = st.floats(-50, 0, width=32) | st.just(float("nan"))
    known = draw(st.none() | st.lists(logprob, min_size=len(response), max_size=len(response)))
    spans = [VersionSpan(1, 1), VersionSpan(2, len(response) - 1)] if len(response) > 1 and draw(st.booleans()) else []
    info = draw(st.dictionaries(names, json_values, max_size=2))
    if draw(st.booleans()):
        info["response"] = draw(responses() | json_values)
    if draw(st.booleans()):
        info["finish_reason"] = draw(st.sampled_from(["stop", "length", "other"]))
    return Step(
        prompt,
        response,
        known,
        reward=draw(st.none() | numbers),
        advantage=draw(st.none() | numbers | st.just([0.5] * len(response))),
        text=draw(texts),
        weight_version=1 if spans else draw(st.integers(0, 3)),
        version_spans=spans,
        info=info,
        messages=draw(st.lists(messages, max_size=3)),
    )


@st.composite
def trajectories(draw: Any) -> Trajectory:
    made: list[Step] = []
    for _ in range(draw(st.integers(0, 3))):
        before = [*made[-1].prompt_ids.tolist(), *made[-1].response_ids.tolist()] if made else []
        made.append(draw(steps(before)))
    info = draw(st.dictionaries(names, json_values, max_size=2))
    if draw(st.booleans()):
        info["reward_components"] = {"right": 1.0, "format": 0.5}
    return Trajectory(draw(texts), made, draw(st.none() | numbers), uid=draw(texts), info=info)


@st.composite
def episodes(draw: Any) -> RecordedEpisode:
    made = draw(st.lists(trajectories(), max_size=3))
    episode = Episode(
        id=f"{draw(texts)}:{draw(st.integers(0, 9))}",
        trajectories=made,
        is_correct=draw(st.booleans()),
        termination_reason=draw(st.sampled_from(TerminationReason)),
        metrics=draw(st.dictionaries(names, numbers, max_size=2)),
        data_source=draw(texts),
        error=draw(texts),
    )
    return RecordedEpisode(
        uid=draw(texts),
        step=draw(st.integers(0, 5)),
        batch=draw(st.integers(0, 1)),
        episode=episode,
        trajectories=tuple(
            RecordedTrajectory(
                uid=f"u{number}",
                trajectory=each,
                reward_given=draw(st.none() | numbers),
                reward_used=draw(st.none() | numbers),
            )
            for number, each in enumerate(made)
        ),
        task=draw(st.none() | st.dictionaries(names, json_values, max_size=2)),
    )


def contents_of(recorded: RecordedEpisode) -> str:
    """All values of an episode as JSON, so that NaN equals NaN."""
    episode = recorded.episode
    assert [each.trajectory for each in recorded.trajectories] == episode.trajectories
    values = (
        (recorded.uid, recorded.step, recorded.batch, recorded.task),
        (episode.id, episode.is_correct, episode.termination_reason, episode.metrics, episode.data_source),
        episode.error,
        [
            (
                (each.uid, each.reward_given, each.reward_used),
                (trajectory.name, trajectory.reward, trajectory.uid, trajectory.info),
                trajectory.tokens.ids.tolist(),
                [_step(step) for step in trajectory.steps],
            )
            for each in recorded.trajectories
            for trajectory in [each.trajectory]
        ],
    )
    return json.dumps(values, sort_keys=True, default=repr)


def _step(step: Step) -> Any:
    return (
        (step.prompt_ids.tolist(), step.response_ids.tolist(), np.nan_to_num(step.logprobs, nan=9.0).tolist()),
        (step.reward, step.advantage, step.text, step.weight_version, step.version_spans),
        (step.info, list(step.messages)),
    )
