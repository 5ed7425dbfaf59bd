"""Values in files of other programs that are ambiguous or unusual: none changes without a line or an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recorded_episodes import episodes_of, record_rollouts

from rllm_core.data.types import TerminationReason
from rllm_core.notices import forget_warnings
from rllm_record.interchange.formats import read_file
from rllm_record.interchange.programs import atif, verifiers_traces
from rllm_record.steps import RecordedEpisode


@pytest.fixture(autouse=True)
def warnings_are_printed_again() -> None:
    forget_warnings()


def ids_of(episodes: list[RecordedEpisode]) -> list[str]:
    return [each.episode.id.rpartition(":")[0] for each in episodes]


def completions(directory: Path, row: dict[str, Any]) -> Path:
    """Write a file of TRL with one row."""
    file = directory / "completions_00001.parquet"
    pq.write_table(
        pa.Table.from_pylist([{"step": 1, "advantage": 0.5, "prompt": "1+1", "completion": "2", **row}]), file
    )
    return file


def test_columns_of_a_trl_reward_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (episode,) = read_file(completions(tmp_path, {"right": 1.0, "length": 7, "answer": "2"}))
    assert episode.trajectories[0].reward_given == 8.0
    assert "sum of the columns right, length. The file contains no weights" in capsys.readouterr().err


def test_nested_nulls_of_parquet_are_dropped(tmp_path: Path) -> None:
    picture = {"type": "image", "text": None, "source": {"url": "https://a/b.png", "detail": None}}
    parts = [picture, {"type": "text", "text": "Which one?", "source": None}]
    prompt = [{"role": "user", "content": parts, "name": None}]
    (episode,) = read_file(completions(tmp_path, {"prompt": prompt, "right": 1.0}))
    (message,) = episode.trajectories[0].trajectory.steps[0].messages
    first, second = message["content"]
    assert first == {"type": "image", "source": {"url": "https://a/b.png"}}
    assert (second, message.keys()) == ({"type": "text", "text": "Which one?"}, {"role", "content"})


def trace_line(data: dict[str, Any], question: str = "1+1", **other: Any) -> dict[str, Any]:
    """A line of verifiers with a trace of one call."""
    nodes = [
        {"message": {"role": "user", "content": question}},
        {"parent": 0, "sampled": True, "message": {"role": "assistant", "content": "2"}},
    ]
    return {"task": {"data": data}, "traces": [{"id": "t", "nodes": nodes, **other}]}


def test_traces_without_names_group_by_task() -> None:
    lines = [trace_line({"question": text}) for text in ("a", "a", "b")] + [trace_line({}, text) for text in "xxy"]
    names = ids_of([*verifiers_traces.read_lines(lines)])
    assert [names.index(name) for name in names] == [0, 0, 2, 3, 3, 5]


def test_task_numbers_belong_to_an_environment() -> None:
    lines = [trace_line({"idx": 0, "question": name}) | {"env": {"id": name}} for name in ("sum", "sum", "sort")]
    assert ids_of([*verifiers_traces.read_lines(lines)]) == ["sum/0", "sum/0", "sort/0"]
    lines = [trace_line({"idx": 0, "question": name}) for name in ("a", "b")]
    assert len({*ids_of([*verifiers_traces.read_lines(lines)])}) == 2


def document(*texts: str) -> dict[str, Any]:
    """A document of ATIF with a question and responses."""
    steps = [
        {"step_id": number, "source": "agent" if number > 1 else "user", "message": text}
        for number, text in enumerate(texts, 1)
    ]
    return {"schema_version": "ATIF-v1.8", "agent": {"name": "a", "version": "0"}, "steps": steps}


def test_documents_without_names_group_by_question() -> None:
    names = ids_of([*atif.read_documents([document("1+1", "2"), document("1+1", "3"), document("2+2", "4")])])
    assert [names.index(name) for name in names] == [0, 0, 2]


def test_reward_components_may_be_nan() -> None:
    rewards = {"right": {"score": float("nan"), "weight": 1.0}, "short": {"score": 0.5, "weight": 1.0}}
    read = [*verifiers_traces.read_lines([trace_line({}, rewards=rewards)])]
    (line,) = verifiers_traces.lines_of(read)
    assert line["traces"][0]["rewards"] == {"right": None, "short": rewards["short"]}
    (again,) = verifiers_traces.read_lines([json.loads(json.dumps(line, allow_nan=False))])
    assert str(again.trajectories[0].trajectory.info) == str(read[0].trajectories[0].trajectory.info)
    assert str(again.trajectories[0].reward_given) == "nan"


def test_exported_traces_have_own_ids() -> None:
    lines = [*verifiers_traces.lines_of(record_rollouts(0, 0, episodes_of({"a": [1.0, 0.0]})))]
    assert [line["id"] for line in lines] == ["a:0", "a:1"]
    ids = [trace["id"] for line in lines for trace in line["traces"]]
    read = verifiers_traces.read_lines(lines)
    assert [each.trajectory.uid for episode in read for each in episode.trajectories] == ids
    assert len({*ids}) == 2


def write_json(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def test_continued_trials_are_one_episode(tmp_path: Path) -> None:
    write_json(tmp_path / "agent/trajectory.json", document("1+1", "2") | {"continued_trajectory_ref": "x"})
    for number in (10, 2):
        more = document("summary", "copied", f"answer {number}") | {"notes": f"part {number}"}
        more["steps"][1]["is_copied_context"] = True
        write_json(tmp_path / f"agent/trajectory.cont-{number}.json", more)
    (episode,) = read_file(tmp_path)
    trajectory = episode.trajectories[0].trajectory
    assert [step.text for step in trajectory.steps] == ["2", "answer 2", "answer 10"]
    assert [message["content"] for message in trajectory.steps[1].messages] == ["summary"]
    kept = trajectory.info["atif"]["extra"]["continuations"]
    assert [(each["notes"], each["copied_steps"][0]["message"]) for each in kept] == [
        ("part 2", "copied"),
        ("part 10", "copied"),
    ]


def test_missing_continuations_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read_file(write_json(tmp_path / "one.json", document("1+1", "2") | {"continued_trajectory_ref": "two.json"}))
    assert "two.json, is not read" in capsys.readouterr().err


def test_failed_trials_have_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failure = {"exception_type": "AgentTimeoutError", "exception_message": "after 60 s"}
    for name in ("a", "b", "c"):
        write_json(tmp_path / name / "result.json", {"task_name": "sum", "exception_info": failure})
    write_json(tmp_path / "a/agent/trajectory.json", document("1+1", "2"))
    (episode,) = read_file(tmp_path)
    assert (episode.episode.error, episode.episode.termination_reason) == (
        "AgentTimeoutError: after 60 s",
        TerminationReason.ERROR,
    )
    assert "2 trials without agent/trajectory.json were skipped, for example b." in capsys.readouterr().err


def inspect_log(path: Path, **sample: Any) -> Path:
    """Write a log of inspect-ai with a sample."""
    messages = [
        {"role": "user", "content": "attachment://a1"},
        {"role": "assistant", "content": [{"type": "text", "text": "attachment://b2"}]},
        {"role": "tool", "content": "after"},
    ]
    made = {"id": 1, "messages": messages, "attachments": {"a1": "long question", "b2": "long answer"}, **sample}
    return write_json(
        path / "log.json", {"version": 2, "status": "success", "eval": {"task": "sum"}, "samples": [made]}
    )


def test_attachments_of_inspect_are_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (episode,) = read_file(inspect_log(tmp_path))
    trajectory = episode.trajectories[0].trajectory
    assert ([*trajectory.steps[0].messages], trajectory.steps[0].text) == (
        [{"role": "user", "content": "long question"}],
        "long answer",
    )
    assert trajectory.info["after"] == [{"role": "tool", "content": "after"}]
    read_file(inspect_log(tmp_path, attachments={}))
    assert "Sample 1 has no attachment 'b2'" in capsys.readouterr().err


def test_nan_scores_of_inspect_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = {"a": {"value": float("nan")}, "b": {"value": 0.5}, "c": {"value": {"x": 1}}}
    (episode,) = read_file(inspect_log(tmp_path, scores=scores))
    assert episode.trajectories[0].reward_given == 0.5
    assert str(episode.trajectories[0].trajectory.info["reward_components"]) == "{'a': nan, 'b': 0.5}"
    assert "1 samples have scores that are NaN" in capsys.readouterr().err


def test_responses_of_nemo_gym_are_model_calls(tmp_path: Path) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}
    tokens = {"prompt_token_ids": [1], "generation_token_ids": [2, 3], "generation_log_probs": [-0.5, -0.25]}
    text = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "2"}]}
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "easy"}]}
    result = {"type": "function_call_output", "call_id": "c", "output": "2"}
    output = [thought, call, result, call, text | tokens, text, result]
    row = {"responses_create_params": {"input": "1+1"}, "response": {"output": output}, "reward": None}
    (episode,) = read_file(write_json(tmp_path / "rollouts.json", row))
    trajectory = episode.trajectories[0].trajectory
    tool_call = '<tool_call>\n{"name": "add", "arguments": "{}"}\n</tool_call>'
    assert [step.text for step in trajectory.steps] == ["<think>\neasy\n</think>\n" + tool_call, tool_call, "2", "2"]
    assert [step.response_ids.tolist() for step in trajectory.steps] == [[], [], [2, 3], []]
    assert [each["content"] for each in trajectory.info["after"]] == ["2"]
    assert episode.trajectories[0].reward_given is None


def test_run_of_prime_rl_has_each_rollout_once() -> None:
    run = Path(__file__).parent / "prime_rl" / "run"
    files = sorted(run.glob("rollouts/*/train/*/traces.jsonl"))
    lines = {line["id"]: line for file in files for line in map(json.loads, file.read_text().split("\n")[:-1])}
    episodes = read_file(run)
    assert len(episodes) == len(lines) == 5
    assert {each.episode.task_id for each in episodes} == {line["task"]["key"] for line in lines.values()}
    assert [(each.episode.id, each.step) for each in episodes] == [
        ("sum-0:0", 0),
        ("sum-1:0", 0),
        ("sum-3:0", 0),
        ("sum-2:0", 10),
        ("sum-0:1", 10),
    ]
    assert str([each.trajectories[0].reward_given for each in episodes]) == "[1.25, nan, None, 0.5, -0.75]"
    assert [each.episode.error for each in episodes] == ["", "", "no traces", "", ""]
    (evaluated,) = read_file(run / "rollouts/step_10/eval")
    texts = [step.text for step in evaluated.trajectories[0].trajectory.steps]
    assert (evaluated.trajectories[0].reward_given, texts[1]) == (2.25, "It is 7\u2028")
    for part in ("rollouts", "rollouts/step_0", "rollouts/step_0/train"):
        assert read_file(run / part)[0].episode.id == "sum-0:0"
