"""Documents of Harbor's own models: `rllm view` opens them, and they are equal after they were episodes of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harbor.models.trajectories import Trajectory
from harbor.models.verifier.result import VerifierResult
from harbor.utils.trajectory_validator import TrajectoryValidator
from hypothesis import given, strategies as st
from opening import open_file

from rllm_record.interchange.formats import read_file, write_file
from rllm_record.interchange.programs import atif

texts = st.text(max_size=6)
extras = st.none() | st.dictionaries(texts, texts | st.integers() | st.none(), max_size=2)
parts = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, texts),
    st.just({"type": "image", "source": {"media_type": "image/png", "path": "https://a/b"}}),
    st.just({"type": "audio", "source": {"media_type": "audio/wav", "path": "https://a/c", "duration_sec": 1.5}}),
)
contents = texts | st.lists(parts, max_size=2)
agents = st.fixed_dictionaries({"name": texts, "version": texts, "model_name": st.none() | texts, "extra": extras})
calls = st.fixed_dictionaries(
    {"function_name": texts, "arguments": st.dictionaries(texts, texts | st.floats(-1, 1), max_size=2), "extra": extras}
)
results = st.fixed_dictionaries(
    {
        "content": st.none() | contents,
        "subagent_trajectory_ref": st.none() | st.just([{"trajectory_path": "other.json"}]),
        "extra": extras,
    }
)


@st.composite
def metrics(draw: Any) -> dict[str, Any]:
    ids = st.lists(st.integers(0, 2**40), max_size=3)
    response = draw(st.none() | ids)
    logprobs = st.lists(st.floats(-9, 0), min_size=len(response or ()), max_size=len(response or ()))
    counts = {name: draw(st.none() | st.integers(0, 9)) for name in ("prompt_tokens", "completion_tokens")}
    tokens = {"prompt_token_ids": draw(st.none() | ids), "completion_token_ids": response, "logprobs": draw(logprobs)}
    return {**counts, **tokens, "cost_usd": draw(st.none() | st.floats(0, 1)), "extra": draw(extras)}


@st.composite
def steps(draw: Any) -> dict[str, Any]:
    source = draw(st.sampled_from(["system", "user", "agent"]))
    step: dict[str, Any] = {"source": source, "message": draw(contents), "extra": draw(extras)}
    step["timestamp"] = draw(st.none() | st.just("2026-01-01T00:00:00Z"))
    step["is_copied_context"] = draw(st.sampled_from([None, None, True, False]))
    found = []
    if source == "agent":
        step["llm_call_count"] = draw(st.sampled_from([None, 0, 1, 2]))
        step["model_name"] = draw(st.none() | texts)
        found = [
            {"tool_call_id": f"c{number}", **call} for number, call in enumerate(draw(st.lists(calls, max_size=2)))
        ]
        step["tool_calls"] = found or draw(st.sampled_from([None, []]))
        if step["llm_call_count"] != 0:
            step |= {"reasoning_content": draw(st.none() | texts), "metrics": draw(st.none() | metrics())}
    if draw(st.booleans()):
        names = st.sampled_from([None, *[call["tool_call_id"] for call in found]])
        listed = draw(st.lists(results, max_size=2))
        step["observation"] = {"results": [{**each, "source_call_id": draw(names)} for each in listed]}
    return step


@st.composite
def documents(draw: Any, depth: int = 1) -> dict[str, Any]:
    made = [
        {"step_id": number, **step} for number, step in enumerate(draw(st.lists(steps(), min_size=1, max_size=4)), 1)
    ]
    inner = draw(st.lists(documents(depth - 1), max_size=2)) if depth else []
    return {
        "schema_version": draw(st.sampled_from(["ATIF-v1.0", "ATIF-v1.7", "ATIF-v1.8"])),
        "session_id": draw(st.none() | texts),
        "agent": {
            "name": draw(texts),
            "version": draw(texts),
            "model_name": draw(st.none() | texts),
            "extra": draw(extras),
        },
        "steps": made,
        "notes": draw(st.none() | texts),
        "final_metrics": draw(st.none() | st.just({"total_steps": 3, "total_cost_usd": 0.1})),
        "extra": draw(extras),
        "subagent_trajectories": [{**each, "trajectory_id": f"s{number}"} for number, each in enumerate(inner)] or None,
    }


def dump(document: dict[str, Any]) -> dict[str, Any]:
    """The document as Harbor writes it."""
    return json.loads(json.dumps(Trajectory.model_validate(document).to_json_dict()))


@given(made=st.lists(documents(), min_size=1, max_size=2))
def test_documents_are_equal_after_reading_and_writing(made: list[dict[str, Any]]) -> None:
    theirs = [dump(each) for each in made]
    again = [*atif.documents_of(atif.read_documents(theirs))]
    validator = TrajectoryValidator()
    assert all(validator.validate(each, validate_images=False) for each in again), validator.get_errors()
    assert again == theirs
    assert [Trajectory.model_validate(each) for each in again] == [Trajectory.model_validate(each) for each in made]


TRIAL = {
    "session_id": "run-1",
    "agent": {"name": "terminus", "version": "2.0", "model_name": "tiny"},
    "steps": [
        {"step_id": 1, "source": "user", "message": "List the files."},
        {
            "step_id": 2,
            "source": "agent",
            "message": "I will look.",
            "reasoning_content": "ls lists files",
            "tool_calls": [{"tool_call_id": "c", "function_name": "bash", "arguments": {"keys": "ls"}}],
            "observation": {"results": [{"source_call_id": "c", "content": "a.txt"}]},
            "metrics": {"prompt_token_ids": [5, 6], "completion_token_ids": [7, 8], "logprobs": [-0.25, -0.5]},
        },
        {"step_id": 3, "source": "agent", "message": "There is one file: a.txt"},
    ],
}


def write_trial(directory: Path, number: int, reward: float) -> None:
    """Write the files of a trial. Harbor's model of a result needs Python 3.12, unlike its model of rewards."""
    (directory / "agent").mkdir(parents=True)
    (directory / "agent" / "trajectory.json").write_text(json.dumps(dump(TRIAL)))
    rewards = VerifierResult(rewards={"reward": reward}).model_dump(mode="json")
    result = {"task_name": "org/files", "trial_name": f"files__{number}", "verifier_result": rewards}
    (directory / "result.json").write_text(json.dumps(result))


def test_view_opens_a_job_of_harbor(tmp_path: Path) -> None:
    for number, reward in enumerate([1.0, 0.0]):
        write_trial(tmp_path / "job" / f"files__{number}", number, reward)

    shown = open_file(tmp_path / "job")

    assert [(each.task, each.reward) for each in shown] == [("org/files", 1.0), ("org/files", 0.0)]
    assert shown[0].prompts == [[("user", "List the files.")], [("tool", "a.txt")]]
    assert "I will look." in (shown[0].responses[0] or "")
    assert '"keys": "ls"' in (shown[0].responses[0] or "").replace("\\", "")
    assert shown[0].responses[1] == "There is one file: a.txt"


def test_written_files_pass_the_validator(tmp_path: Path) -> None:
    write_trial(tmp_path / "trial", 0, 1.0)
    episodes = read_file(tmp_path / "trial")
    write_file(tmp_path / "one.json", episodes, "atif")
    validator = TrajectoryValidator()
    assert validator.validate(tmp_path / "one.json"), validator.get_errors()
    (again,) = read_file(tmp_path / "one.json")
    assert (again.episode.id, again.trajectories[0].reward_given) == ("org/files:0", 1.0)
    assert again.trajectories[0].trajectory.steps[0].logprobs.tolist() == [-0.25, -0.5]
