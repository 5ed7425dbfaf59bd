"""A record that is read equals the written record. Other files are rejected."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from expecting import expect_error
from hypothesis import given, strategies as st

from rllm_core.data.codec import episode_to_json
from rllm_core.data.record import Outcome
from rllm_core.data.types import Episode, TerminationReason, Trajectory
from rllm_core.data.version_spans import VersionSpan
from rllm_record.steps import RecordedEpisode, RecordedOutcome, RecordError, StepFiles
from rllm_record.steps.accounting import Accounting
from rllm_record.steps.files import read_episodes
from rllm_record.steps.parquet import VERSION, VERSION_KEY

from .made_steps import rollout, step

TEXTS = st.text(st.characters())
NAMES = st.text(st.characters(exclude_categories=["Cs"]))
INFO = st.dictionaries(TEXTS, st.none() | st.integers() | TEXTS | st.lists(TEXTS, max_size=2), max_size=3)
REWARDS = st.none() | st.floats(allow_nan=False)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    trajectory = Trajectory(draw(NAMES), reward=draw(REWARDS), uid=draw(NAMES), info=draw(INFO))
    for version in range(draw(st.integers(0, 3))):
        said = draw(st.lists(st.integers(0, 2**31 - 1), max_size=4))
        trajectory.add_step(
            # It continues, or its history was rewritten.
            [*draw(st.sampled_from([trajectory.tokens.ids.tolist(), []])), 7, *draw(st.lists(st.integers(0, 9)))],
            said,
            draw(st.lists(st.floats(width=32), min_size=len(said), max_size=len(said))),
            reward=draw(REWARDS),
            advantage=draw(st.none() | st.just(0.5) | st.just([0.25] * len(said))),
            text=draw(NAMES),
            weight_version=version,
            version_spans=[VersionSpan(version, 1)] * len(said),
            info=draw(INFO),
        )
    return trajectory


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    return Episode(
        id=f"{draw(NAMES)}:{draw(st.integers(0, 9))}",
        trajectories=draw(st.lists(trajectories(), max_size=3)),
        is_correct=draw(st.booleans()),
        termination_reason=draw(st.sampled_from(TerminationReason)),
        metrics=draw(st.dictionaries(NAMES, st.floats(allow_nan=False), max_size=3)),
        data_source=draw(NAMES),
        error=draw(NAMES),
    )


def record_episodes(*some: Episode) -> list[RecordedEpisode]:
    return Accounting().account_for(step(12, list(some), []), {})[0]


@pytest.mark.long
@given(generated=st.lists(episodes(), max_size=3))
def test_episodes_are_read_unchanged(tmp_path_factory: pytest.TempPathFactory, generated: list[Episode]) -> None:
    files = StepFiles(tmp_path_factory.getbasetemp() / "read unchanged")
    files.write(12, record_episodes(*generated), [], "tokens")

    read = [each.episode for each in files.episodes(12)]

    assert repr([episode_to_json(each) for each in read]) == repr([episode_to_json(each) for each in generated])


OUTCOME = RecordedOutcome(
    outcome=Outcome(
        step=12,
        trajectory="12.0:t:0/0",
        outcome="dropped",
        rule="reject/all_solved",
        numbers={"solved": 2.0, "reward_max": float("inf")},
        group="t:agent",
        peers=("12.0:t:1/0",),
    ),
    rollout_step=11,
    batch=1,
    episode="12.0:t:0",
    name="agent",
)


def test_outcomes_are_read_unchanged(tmp_path: Path) -> None:
    alone = dataclasses.replace(OUTCOME.outcome, group=None, peers=(), numbers={})
    outcomes = [OUTCOME, dataclasses.replace(OUTCOME, outcome=alone)]
    StepFiles(tmp_path).write(12, [], outcomes, "outcomes")

    assert StepFiles(tmp_path).outcomes(12) == outcomes


def test_rewards_and_tasks_are_stored(tmp_path: Path) -> None:
    generated, *_ = Accounting().account_for(step(12, [rollout("t:0", 0.5)], []), {"t": {"number": 7}})
    StepFiles(tmp_path).write(12, generated, [], "tokens")

    (read,) = StepFiles(tmp_path).episodes(12)

    assert (read.uid, read.step, read.batch, read.task, read.tries) == ("12.0:t:0", 12, 0, {"number": 7}, 1)
    (judged,) = read.trajectories
    assert (judged.uid, judged.reward_given, judged.reward_used) == ("12.0:t:0/0", 0.5, None)


def test_messages_and_their_first_tokens_are_stored(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}
    parts = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    observations = [{"role": "system", "content": "be brief"}, parts]
    trajectory = Trajectory("agent")
    trajectory.add_step([1, 2], [3], None, messages=observations)
    trajectory.add_step([1, 2, 3, 4], [5], None, messages=[call])
    trajectory.add_step([9], [6], None)
    files = StepFiles(tmp_path)
    files.write(0, record_episodes(Episode(id="t:0", trajectories=[trajectory])), [], "tokens")

    turns = files.episode_table(0)["trajectories"].to_pylist()[0][0]["steps"]
    read = files.episodes(0)[0].episode.trajectories[0].steps

    places = [(turn["prompt_start"], turn["response_start"], turn["end"]) for turn in turns]
    assert places == [(0, 2, 3), (3, 4, 5), (5, 6, 7)]
    messages = [(each["role"], each["text"], each["data"]) for each in turns[0]["messages"]]
    assert messages == [("system", "be brief", None), ("user", "hi", json.dumps(parts))]
    assert [list(turn.messages) for turn in read] == [observations, [call], []]


def test_parts_of_rewards_and_odd_values_are_stored(tmp_path: Path) -> None:
    generated = rollout("t:0", "high")  # type: ignore[arg-type]
    (trajectory,) = generated.trajectories
    trajectory.info |= {"reward_components": {"exact": 1.0, "format": np.float32(0.5)}, "answer": {1j}}
    trajectory.steps[0].text = "a\ud800b"
    files = StepFiles(tmp_path)
    files.write(0, record_episodes(generated), [], "tokens")

    (row,) = files.episode_table(0).to_pylist()
    assert row["trajectories"][0]["components"] == [("exact", 1.0), ("format", 0.5)]
    (read,) = files.episodes(0)[0].trajectories
    assert read.reward_given is None
    assert (read.trajectory.info["answer"], read.trajectory.steps[0].text) == ("{1j}", "a?b")


def test_record_outcomes_contains_no_text_and_tokens(tmp_path: Path) -> None:
    files = StepFiles(tmp_path)
    generated = Accounting().account_for(step(12, [rollout("t:0", 1.0)], []), {"t": {"secret": 1}})[0]
    files.write(12, generated, [OUTCOME], "outcomes")

    (row,) = files.episode_table(12).to_pylist()
    (trajectory,) = row["trajectories"]
    (turn,) = trajectory["steps"]

    assert (row["task"], trajectory["ids"], trajectory["info"], turn["text"], turn["info"]) == (None,) * 5
    assert (row["termination_reason"], trajectory["reward_given"]) == ("env_done", 1.0)
    assert (turn["weight_version"], turn["end"]) == (0, 4)
    with expect_error(RecordError, "record-without-tokens", "rllm.record"):
        files.episodes(12)


def test_step_exists_after_its_outcomes_are_written(tmp_path: Path) -> None:
    files = StepFiles(tmp_path)
    files.write(3, [], [], "outcomes")
    files.write(20, [], [], "outcomes")
    (tmp_path / "outcomes" / ".step_000004.parquet.1.tmp").write_bytes(b"half")
    (tmp_path / "episodes" / "step_000005.parquet").write_bytes(b"half")

    assert files.steps() == [3, 20]


def test_repeated_steps_are_deleted_or_replaced(tmp_path: Path) -> None:
    files = StepFiles(tmp_path)
    for number in range(4):
        files.write(number, record_episodes(rollout("t:0")), [OUTCOME], "tokens")

    files.forget_from(2)

    assert files.steps() == [0, 1]
    assert len(list(tmp_path.rglob("*.parquet"))) == 4
    files.write(0, [], [], "tokens")
    assert (files.episodes(0), files.outcomes(0)) == ([], [])
    assert list(tmp_path.rglob("*.tmp")) == []


def write_marked_file(path: Path, **marks: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"step": pa.array([0], pa.int32()), "outcome": ["trained"]})
    pq.write_table(table.replace_schema_metadata({f"rllm.record.{key}": value for key, value in marks.items()}), path)


BAD: dict[str, tuple[Any, str]] = {
    "newer": (lambda path: write_marked_file(path, version=str(VERSION + 1)), "wrong-schema-version"),
    "older": (lambda path: write_marked_file(path, version=str(VERSION - 1)), "wrong-schema-version"),
    "another program's": (write_marked_file, "wrong-file-type"),
    "no number": (lambda path: write_marked_file(path, version="one"), "wrong-file-type"),
    "text": (lambda path: path.write_text("no parquet"), "file-unreadable"),
    "empty": (lambda path: path.write_bytes(b""), "file-unreadable"),
    "directory": (lambda path: path.mkdir(), "file-unreadable"),
    "nothing": (lambda path: None, "no-record"),
}


@pytest.mark.parametrize(("make", "code"), BAD.values(), ids=BAD)
def test_non_record_file_is_rejected(tmp_path: Path, make: Any, code: str) -> None:
    (tmp_path / "outcomes").mkdir()
    make(tmp_path / "outcomes" / "step_000000.parquet")

    with expect_error(RecordError, code, "step_000000.parquet"):
        StepFiles(tmp_path).outcomes(0)


def test_outcomes_file_contains_no_episodes(tmp_path: Path) -> None:
    StepFiles(tmp_path).write(0, [], [OUTCOME], "tokens")

    with expect_error(RecordError, "damaged-record"):
        read_episodes(tmp_path / "outcomes" / "step_000000.parquet")


@pytest.mark.parametrize("kind", ["outcomes", "episodes"])
def test_truncated_file_is_rejected(tmp_path: Path, kind: str) -> None:
    files = StepFiles(tmp_path)
    files.write(0, record_episodes(rollout("t:0")), [OUTCOME], "tokens")
    file = tmp_path / kind / "step_000000.parquet"
    whole = file.read_bytes()
    for sixteenth in range(16):
        file.write_bytes(whole[: len(whole) * sixteenth // 16])
        with expect_error(RecordError, "file-unreadable"):
            files.outcomes(0) if kind == "outcomes" else files.episodes(0)


def test_unwritable_directory_is_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "record").write_text("a file")

    with expect_error(RecordError, "not-writable", "Step 0 cannot"):
        StepFiles(tmp_path / "record").write(0, [], [], "outcomes")


def test_equal_rollouts_have_equal_bytes_with_version(tmp_path: Path) -> None:
    for name in ("a", "b"):
        StepFiles(tmp_path / name).write(0, record_episodes(rollout("t:0")), [OUTCOME], "tokens")

    first, second = (sorted((tmp_path / name).rglob("*.parquet")) for name in ("a", "b"))
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]
    for file in first:
        assert pq.read_schema(file).metadata[VERSION_KEY] == str(VERSION).encode()
