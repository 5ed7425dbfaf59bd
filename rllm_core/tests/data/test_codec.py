"""Episodes and groups as JSON and back, bit for bit."""

from __future__ import annotations

import json
import math
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rllm_core.data import codec
from rllm_core.data.types import Episode, Step, TerminationReason, Trajectory, TrajectoryGroup
from rllm_core.data.version_spans import VersionSpan

TOKEN = st.integers(0, 2**31 - 1)
FLOAT32 = st.floats(width=32)  # subnormal, infinite and NaN (unknown) ones included
FLOAT64 = st.floats()
TEXT = st.text(max_size=5)
INFO = st.dictionaries(TEXT, st.none() | st.booleans() | st.integers() | TEXT, max_size=2)


@st.composite
def versions(draw: st.DrawFn, length: int) -> dict[str, Any]:
    """The weight version of a response, and its spans where there are any."""
    numbers = draw(st.lists(st.integers(0, 9), min_size=length, max_size=length))
    if not numbers or draw(st.booleans()):
        return {"weight_version": draw(st.integers(0, 9))}
    spans = [VersionSpan(version, len(list(run))) for version, run in groupby(numbers)]
    return {"weight_version": min(numbers), "version_spans": spans}


@st.composite
def steps(draw: st.DrawFn) -> Step:
    response = draw(st.lists(TOKEN, max_size=4))
    length = len(response)
    return Step(
        draw(st.lists(TOKEN, min_size=1 if response else 0, max_size=4)),
        response,
        draw(st.lists(FLOAT32, min_size=length, max_size=length)),
        reward=draw(st.none() | FLOAT64),
        advantage=draw(st.none() | FLOAT64 | st.lists(FLOAT64, min_size=length, max_size=length)),
        text=draw(TEXT),
        **draw(versions(length)),
        info=draw(INFO),
    )


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    return Trajectory(
        draw(TEXT),
        draw(st.lists(steps(), max_size=4)),
        draw(st.none() | FLOAT64),
        uid=draw(TEXT),
        info=draw(INFO),
    )


EPISODES = st.builds(
    Episode,
    id=TEXT.map(lambda text: f"{text}:3"),
    trajectories=st.lists(trajectories(), max_size=3),
    is_correct=st.booleans(),
    termination_reason=st.sampled_from(TerminationReason),
    metrics=st.dictionaries(TEXT, FLOAT64, max_size=2),
    data_source=TEXT,
    error=TEXT,
)
GROUPS = st.builds(
    TrajectoryGroup,
    group_id=TEXT,
    trajectories=st.lists(trajectories(), max_size=3),
    metadata=st.lists(INFO, max_size=3),
)


def _bits(value: Any) -> Any:
    """`value` so that equal means the same bits: -0.0 is not 0.0, and NaN is NaN."""
    if isinstance(value, (float, np.floating)):
        return "nan" if math.isnan(value) else float(value).hex()
    if isinstance(value, (list, tuple)):
        return [_bits(item) for item in value]
    if isinstance(value, dict):
        return {key: _bits(item) for key, item in value.items()}
    return value


def _trajectory_bits(trajectory: Trajectory) -> Any:
    buffer = trajectory.tokens
    return _bits(
        {
            "columns": [buffer.ids.tolist(), buffer.logprobs.tolist(), buffer.sampled.tolist(), buffer.segment_starts],
            "fields": [trajectory.name, trajectory.reward, trajectory.uid, trajectory.info],
            "steps": [
                [step.span, step.reward, step.advantage, step.text, step.weight_version, step.version_spans, step.info]
                for step in trajectory.steps
            ],
        }
    )


def _through_text(data: Any) -> Any:
    return json.loads(json.dumps(data))


@given(EPISODES)
def test_episodes_come_back_bit_for_bit(episode: Episode) -> None:
    back = codec.episode_from_json(_through_text(codec.episode_to_json(episode)))
    assert [_trajectory_bits(t) for t in back.trajectories] == [_trajectory_bits(t) for t in episode.trajectories]
    for name in ("id", "is_correct", "termination_reason", "metrics", "data_source", "error"):
        assert _bits(getattr(back, name)) == _bits(getattr(episode, name))
    assert (back.task_id, back.rollout_idx) == (episode.task_id, episode.rollout_idx)


@given(GROUPS)
def test_groups_come_back_bit_for_bit(group: TrajectoryGroup) -> None:
    back = codec.group_from_json(_through_text(codec.group_to_json(group)))
    assert (back.group_id, back.metadata) == (group.group_id, group.metadata)
    assert [_trajectory_bits(t) for t in back.trajectories] == [_trajectory_bits(t) for t in group.trajectories]


@given(st.data())
def test_steps_are_decoded_in_their_order(data: st.DataObject) -> None:
    trajectory = data.draw(trajectories())
    for _ in range(data.draw(st.integers(0, 3))):  # turns that extend the previous tokens, and turns that do not
        trajectory.add_step([*trajectory.tokens.ids.tolist(), 7], [8], [-0.5], text="next")
    assert len(trajectory.tokens.ids) == len(trajectory.tokens)
    trajectory.steps = data.draw(st.permutations(trajectory.steps))
    back = codec.trajectory_from_json(_through_text(codec.trajectory_to_json(trajectory)))
    assert _trajectory_bits(back) == _trajectory_bits(trajectory)


def test_every_token_is_written_once() -> None:
    trajectory = Trajectory("agent")
    trajectory.add_step([1, 2], [3], [-0.1])
    trajectory.add_step([1, 2, 3, 4], [5], [-0.2])
    assert codec.trajectory_to_json(trajectory)["ids"] == [1, 2, 3, 4, 5]


def test_numbers_of_numpy_are_written_as_numbers() -> None:
    half: Any = np.float32(0.5)
    four: Any = np.int64(4)
    both: Any = np.array([0.25, 0.5], np.float32)
    is_correct: Any = np.bool_(True)
    spans = [VersionSpan(four, four // 2)]
    step = Step([1], [2, 3], [-1.0, -1.0], reward=half, advantage=both, weight_version=four, version_spans=spans)
    trajectory = Trajectory("agent", [step, Step([1], [2], [-1.0], advantage=half)], reward=half)
    episode = Episode(id="t:0", trajectories=[trajectory], is_correct=is_correct, metrics={"calls": four})
    back = codec.episode_from_json(_through_text(codec.episode_to_json(episode)))
    assert (back.is_correct, back.metrics, back.trajectories[0].reward) == (True, {"calls": 4.0}, 0.5)
    first, second = back.trajectories[0].steps
    assert (first.reward, first.advantage, second.advantage) == (0.5, [0.25, 0.5], 0.5)
    assert first.version_spans == (VersionSpan(4, 2),)


def test_old_steps_without_version_spans_are_read() -> None:
    written = codec.trajectory_to_json(Trajectory("agent", [Step([1], [2], [-1.0], weight_version=3)]))
    del written["steps"][0]["version_spans"]
    (step,) = codec.trajectory_from_json(_through_text(written)).steps
    assert (step.weight_version, step.version_spans) == (3, ())


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_schema_version_is_refused(version: object) -> None:
    data = codec.episode_to_json(Episode(id="t:0")) | {"schema_version": version}
    with pytest.raises(ValueError, match=f"version {version}.* 1$"):
        codec.episode_from_json(data)


def test_an_unknown_log_prob_is_null() -> None:
    data = codec.trajectory_to_json(Trajectory("agent", [Step([1], [2, 3], [-0.5, None])]))
    assert json.dumps(data["logprobs"]) == "[0.0, -0.5, null]"
    assert codec.trajectory_from_json(data).steps[0].logprobs.tolist() == pytest.approx([-0.5, math.nan], nan_ok=True)
