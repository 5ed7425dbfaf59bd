"""docs/how-to/own-data.md and write-a-reward.md, word for word, with the files of the README."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from documents import blocks, text_of
from expecting import check_one_error, check_printed, check_values

QUESTIONS, REWARDS = "docs/how-to/own-data.md", "docs/how-to/write-a-reward.md"
COMMANDS = re.findall(r"^    rllm (.*)$", text_of(QUESTIONS) + text_of(REWARDS), re.MULTILINE)
FOR_A_MODEL = "--model ./some-hf-directory"
Rllm = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Write the files of the README."""
    (tmp_path / "train.jsonl").write_text(blocks("README.md", "json")[0])
    (tmp_path / "rewards.py").write_text(blocks("README.md", "python")[0])
    return tmp_path


def steps(directory: Path) -> list[dict[str, float]]:
    lines = (directory / "runs/rllm-training/question-1/metrics.jsonl").read_text().splitlines()
    return [step for step in map(json.loads, lines) if "actor/loss" in step]


@pytest.mark.smoke
def test_the_commands_of_the_guide_train(directory: Path, rllm_here: Rllm) -> None:
    trained = [command for command in COMMANDS if "total_batches=3" in command]
    assert len(trained) == 3
    runs = []
    for command in trained:
        done = rllm_here(*shlex.split(command.replace("total_batches=3", "total_batches=2")))
        assert done.returncode == 0, done.stderr
        # Validation data does not exist, so the command evaluates with the training data.
        evaluate = "rllm eval question --model runs/rllm-training/question-1/checkpoints/latest --data train.jsonl\n"
        assert evaluate in done.stdout
        runs.append(steps(directory))
    by_flags, by_keys, weighted = runs
    assert len(by_flags) == len(weighted) == 2
    for name in ("reward/agent/mean", "env/reward.python"):
        assert [step[name] for step in by_flags] == [step[name] for step in by_keys]
    assert by_flags[0]["env/reward.python"] == pytest.approx(by_flags[0]["reward/agent/mean"])
    for step in weighted:
        parts = step["env/reward.exact"] + 0.1 * step["env/reward.length"]
        assert step["reward/agent/mean"] == pytest.approx(parts)


def test_command_for_your_own_model_is_accepted(directory: Path, thinking_model: Path, rllm_here: Rllm) -> None:
    (command,) = (command for command in COMMANDS if FOR_A_MODEL in command)
    (directory / "val.jsonl").write_text(blocks("README.md", "json")[0])
    (directory / "some-hf-directory").symlink_to(thinking_model)
    done = rllm_here(*shlex.split(command), "--dry-run")
    assert done.returncode == 0, done.stderr
    check_values(done.stdout, "train.jsonl", "val.jsonl", "rewards.py:score", "some-hf-directory")


def test_command_for_programs_is_accepted(directory: Path, rllm_here: Rllm) -> None:
    (command,) = (command for command in COMMANDS if "--reward code" in command)
    row = {"question": "Write a function that doubles a number.", "test_list": ["assert double(2) == 4"]}
    (directory / "tasks.jsonl").write_text(json.dumps(row) + "\n")
    done = rllm_here(*shlex.split(command), "--dry-run")
    assert done.returncode == 0, done.stderr
    check_values(done.stdout, "tasks.jsonl", "code")


def test_reward_of_the_guide_marks_correct_answers() -> None:
    names: dict[str, Any] = {}
    exec(blocks(REWARDS, "python")[0], names)

    def scored(text: str) -> Any:
        return names["score"](SimpleNamespace(response=SimpleNamespace(content=text), data={"answer": "2"}))

    assert scored(" 2") == {"value": 1.0, "correct": True}
    assert scored("7") == {"value": 0.1, "correct": False}


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        pytest.param("rewards.py", "0.1 *", "0.2 *", ("reward python: rewards.py", "line 4"), marks=pytest.mark.long),
        pytest.param("train.jsonl", '"5"', '"6"', ("Training tasks of train.jsonl", "('2')"), marks=pytest.mark.smoke),
    ],
)
def test_changed_file_stops_resume_until_accepted(
    file: str, old: str, new: str, named: tuple[str, str], directory: Path, rllm_here: Rllm
) -> None:
    words = "train question --data train.jsonl --reward rewards.py:score data.max_response_length=1 rllm.rollout.n=2"
    accepted = "rllm.trainer.on_changed_source=warn"

    def go_on(steps: int, *more: str) -> subprocess.CompletedProcess[str]:
        return rllm_here(*shlex.split(words), f"rllm.trainer.total_batches={steps}", *more)

    assert go_on(1).returncode == 0
    path = directory / file
    path.write_text(path.read_text().replace(old, new))
    refused = go_on(2, "--resume")
    assert refused.returncode != 0
    check_printed(refused.stderr, "source-changed", *named, accepted)
    warned = go_on(2, "--resume", accepted)
    assert warned.returncode == 0, warned.stderr
    check_values(warned.stderr, "warning: ", named[0])
    again = go_on(3, "--resume")
    assert (again.returncode, again.stderr.count(named[0])) == (0, 0)
    assert len(steps(directory)) == 3


ROW = '{"prompt": [{"role": "user", "content": "%d?"}], "%s": [{"role": "assistant", "content": "%s"}]%s}\n'
REJECTED = ', "rejected": [{"role": "assistant", "content": "no"}]'


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "row"),
    [
        ("sft --data rows.jsonl", lambda n, answer: ROW % (n, "completion", answer, "")),
        ("sft --data rows.json", lambda n, answer: ROW % (n, "completion", answer, "")),
        ("prefer --data rows.jsonl", lambda n, answer: ROW % (n, "chosen", answer, REJECTED)),
    ],
)
def test_a_changed_row_is_named_in_every_family(
    command: str, row: Callable[[int, str], str], tmp_path: Path, rllm_here: Rllm
) -> None:
    file = tmp_path / command.rpartition(" ")[2]

    def write(answer: str) -> None:
        file.write_text("".join(row(n, answer if n == 3 else "yes") for n in (1, 2, 3, 4)))
        os.utime(file, (0, 0))  # as a program does that copies it with its time

    write("two")
    assert rllm_here(*command.split(), "rllm.trainer.total_batches=1").returncode == 0
    write("six")
    refused = rllm_here(*command.split(), "--resume", "rllm.trainer.total_batches=2")
    place = 3 if file.suffix == ".jsonl" else 2
    check_printed(refused.stderr, "source-changed", file.name, f"content of 1 of 4 tasks ('{place}')")
    file.write_text(file.read_text() + row(5, "yes"))
    refused = rllm_here(*command.split(), "--resume", "rllm.trainer.total_batches=2")
    check_printed(
        refused.stderr, "run-changed", file.name, f"1 of 4 tasks ('{place}'), and 1 added at the end", "--model"
    )


@pytest.mark.long
def test_more_stored_rollouts_stop_a_resumed_run(rllm_here: Rllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLLM_BLOCK_PLUGINS", "")

    def train(steps: int) -> int:
        words = "train guess rllm.record=tokens rllm.rollout.n=2 data.train_batch_size=4 --resume"
        return rllm_here(*words.split(), f"rllm.trainer.total_batches={steps}").returncode

    sft = ["sft", "--stored", "runs/rllm-training/guess-1", "rllm.trainer.total_batches=1"]
    assert train(1) == rllm_here(*sft).returncode == train(2) == 0
    refused = rllm_here(*sft, "--resume")
    check_printed(refused.stderr, "run-changed", "runs/rllm-training/guess-1", "4 added to 4 tasks")


@pytest.mark.parametrize(
    ("words", "code", "value"),
    [
        ("train question --data train.jsonl", "missing-key", "`rllm.reward`"),
        ("train question --reward exact", "no-dataset", "--data FILE"),
        ("eval question --reward exact", "no-validation-tasks", "--data FILE"),
        ("train question --data no.jsonl --reward exact", "file-unreadable", "no.jsonl"),
        ("train question --data train.jsonl --reward exat", "unknown-plugin", "'exact'"),
        ("train question --data train.jsonl --reward rewards.py", "bad-function-name", "rewards.py:score"),
        ("train question --data train.jsonl 'rllm.reward=[python:score]'", "wrong-value", "FILE.py:FUNCTION"),
        ("train question --data train.jsonl --reward rewards.py:scor", "unknown-function", "'score'"),
        (
            "train question --data train.jsonl --estimator gdpo "
            "'rllm.reward=[exact, {name: format, pattern: x, weight: 2}]'",
            "unused-key",
            "{name: gdpo, weights: {format: 2}}",
        ),
        (
            "train question --data train.jsonl --dry-run "
            "'rllm.reward=[{name: judge, url: http://127.0.0.1:9/v1, model: m, api_key_env: NOT_SET}]'",
            "missing-api-key",
            "NOT_SET",
        ),
        (
            "train question --data train.jsonl 'rllm.reward=[{name: judge, url: 127.0.0.1, model: m}]'",
            "wrong-value",
            "http://127.0.0.1:8000/v1",
        ),
        (
            "train question --data train.jsonl --reward exact rllm.env.env_args.prompt=q",
            "missing-column",
            "'q'",
        ),
    ],
)
def test_what_is_missing_is_said_in_one_paragraph(
    words: str, code: str, value: str, directory: Path, rllm_here: Rllm
) -> None:
    done = rllm_here(*shlex.split(words))
    assert done.returncode != 0
    check_printed(done.stderr, code, value)
    check_one_error(done.stderr)


def test_conversation_of_turns_ends_after_one_answer(directory: Path, rllm_here: Rllm) -> None:
    words = "--data train.jsonl --reward exact data.max_response_length=1 rllm.trainer.total_batches=1"
    done = rllm_here("train", "question", *shlex.split(words), "rllm.workflow.name=multi_turn_workflow")
    assert done.returncode == 0, done.stderr
    assert steps(directory)[0]["batch/ended_max_turns_exceeded"] == 0.0
