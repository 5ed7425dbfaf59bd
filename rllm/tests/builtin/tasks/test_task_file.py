"""Tasks from files, from rows of a program and from directories, and the questions that `question` asks."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expecting import check_error, expect_error
from hypothesis import given, strategies as st
from pydantic import ValidationError

from rllm.builtin.tasks.question import Question, QuestionParams, check_question
from rllm.builtin.tasks.task_directories import TASK_DIRECTORY, TaskDirectories, TaskDirectoriesParams
from rllm.builtin.tasks.task_file import TaskFileParams, read_tasks
from rllm.rows.task_rows import tasks_from_rows
from rllm_core.contracts.environment import Outcome
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError
from rllm_core.notices import forget_warnings

Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Makes the file ``algebra.jsonl`` of this."""

    def make(content: str | bytes) -> Path:
        file = tmp_path / "algebra.jsonl"
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    return make


def _read(path: Path, **options: Any) -> list[Task]:
    return list(read_tasks(TaskFileParams(path=str(path), **options)))


def _error(path: Path, **options: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        _read(path, **options)
    return caught.value


def test_each_line_is_a_task(write: Write) -> None:
    tasks = _read(write('{"id": "b", "question": "2 + 2?"}\n{"id": "a", "question": "3 + 3?"}\n'))
    assert tasks == [
        Task(id="b", data={"id": "b", "question": "2 + 2?"}, data_source="algebra"),
        Task(id="a", data={"id": "a", "question": "3 + 3?"}, data_source="algebra"),
    ]


def test_ids_may_be_numbers_and_have_another_name(write: Write) -> None:
    file = write('{"id": "same", "key": 7}\n{"id": "same", "key": "x"}\n{"id": "same", "key": 1.5}\n')
    assert [task.id for task in _read(file, id_key="key")] == ["7", "x", "1.5"]
    check_error(_error(file, id_key="kei"), "missing-column", file, "'kei'", "id_key")


def test_missing_ids_are_line_numbers(write: Write) -> None:
    tasks = _read(write('{"q": 1}\n\n   \n{"q": 2}'))
    assert [(task.id, task.data) for task in tasks] == [("1", {"q": 1}), ("4", {"q": 2})]


def test_data_source_of_option_line_or_file(write: Write) -> None:
    file = write('{"data_source": "gsm"}\n{"data_source": 3}\n{"data_source": ""}\n{}')
    assert [task.data_source for task in _read(file)] == ["gsm", "algebra", "algebra", "algebra"]
    assert {task.data_source for task in _read(file, data_source="all")} == {"all"}


def test_byte_order_mark_and_windows_line_ends_are_accepted(write: Write) -> None:
    assert [task.data for task in _read(write('\ufeff{"q": 1}\r\n{"q": 2}\r\n'))] == [{"q": 1}, {"q": 2}]


@given(rows=st.lists(st.dictionaries(st.sampled_from(["q", "answer"]), st.text() | st.integers()), min_size=1))
def test_what_is_written_as_json_is_read_back(write: Write, rows: list[dict[str, Any]]) -> None:
    # Unescaped: some characters of Unicode break lines of text, and not lines of JSON.
    file = write("\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    tasks = _read(file)
    assert [task.data for task in tasks] == rows
    assert [task.id for task in tasks] == [str(number) for number in range(1, len(rows) + 1)]


@pytest.mark.parametrize(
    ("content", "line", "code", "value"),
    [
        ('{"q": 1}\nsolve this\n', 2, "not-json", "column 1"),
        ('{"q": 1}\n{"q": \n', 2, "not-json", "column 6"),
        ("{}\n\n[1, 2]\n", 3, "not-json", "[1, 2]"),
        ("null", 1, "not-json", "None"),
        (b'{"q": "\xe9"}', 1, "not-utf8", "byte"),
        ('{"id": "a"}\n{"id": "b"}\n{"id": "a"}', 3, "duplicate-task-id", "'a', as {file}, line 1"),
        ('{"id": "1"}\n{"id": 1}', 2, "duplicate-task-id", "'1', as {file}, line 1"),
        ('{}\n{"id": "a"}\n{}', 1, "bad-task-id", "{file}, line 2"),
        ('{"id": "a"}\n{}', 2, "bad-task-id", "{file}, line 1"),
        ('{"id": "a"}\n{"id": null}', 2, "bad-task-id", "'id'"),
        ('{"id": true}', 1, "bad-task-id", "True"),
        ('{"id": ["a"]}', 1, "bad-task-id", "['a']"),
    ],
)
def test_bad_lines_are_named(write: Write, content: str | bytes, line: int, code: str, value: str) -> None:
    file = write(content)
    error = _error(file)
    assert error.message.startswith(f"{file}, line {line}")
    check_error(error, code, value.replace("{file}", str(file)))
    assert error.hint


def test_invalid_characters_are_replaced_and_counted(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    forget_warnings()
    path = write('{"question": "\\ud83d\\ude00"}\n{"question": ["cut \\uD83d", {"\\udce9": 1}]}\n')
    assert [task.data["question"] for task in read_tasks(TaskFileParams(path=str(path)))] == [
        "\U0001f600",
        ["cut \ufffd", {"\ufffd": 1}],
    ]
    assert "in 1 rows, such as line 2" in capsys.readouterr().err


@pytest.mark.parametrize("nested", ["[" * 200_000, "1" * 5_000])
def test_json_that_python_will_not_read_is_an_error_too(write: Write, nested: str) -> None:
    file = write(nested)
    assert _error(file).message.startswith(f"{file}, line 1: not JSON (")


@pytest.mark.parametrize("content", ["", "\n", " \n\n"])
def test_a_file_without_tasks_is_an_error(write: Write, content: str) -> None:
    file = write(content)
    assert _error(file).message == f"{file} contains no tasks."


def test_missing_files_are_named(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    error = _error(Path("missing.jsonl"))
    check_error(error, "file-unreadable", "missing.jsonl", os.strerror(errno.ENOENT))
    assert str(Path.cwd()) in error.hint
    check_error(_error(tmp_path), "file-unreadable", tmp_path)
    write("{}")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(_read(Path("~/algebra.jsonl"))) == 1


def test_rows_of_a_program_are_tasks_or_their_data() -> None:
    class Row(dict[str, Any]):
        pass

    def rows() -> Iterator[Any]:
        yield Task(id="first", data={"q": 1})
        yield {"id": np.int64(7), "q": 2}
        yield Row(id="c", data_source="gsm")

    assert tasks_from_rows(rows(), "train_dataset") == [
        Task(id="first", data={"q": 1}),
        Task(id="7", data={"id": 7, "q": 2}),
        Task(id="c", data={"id": "c", "data_source": "gsm"}, data_source="gsm"),
    ]
    assert tasks_from_rows([], "train_dataset") == []
    row = {"q": 1}
    tasks = tasks_from_rows([row, Task(id="a"), {}], "train_dataset")
    row["q"] = 2
    assert [(task.id, task.data) for task in tasks] == [("0", {"q": 1}), ("a", {}), ("2", {})]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (["question"], ("bad-task", "train_dataset[0]", "'question'")),
        ([{}, None], ("bad-task", "train_dataset[1]")),
        ([{"id": 1}, {}], ("bad-task-id", "train_dataset[1]", "'id'", "train_dataset[0]")),
        ([{"id": 1}, Task(id="1")], ("duplicate-task-id", "train_dataset[1]", "'1'", "train_dataset[0]")),
        ([Task(id="1"), {}], ("duplicate-task-id", "train_dataset[1]", "'1'", "train_dataset[0]")),
        ([{"id": [1]}], ("bad-task-id", "train_dataset[0]", "'id'")),
    ],
)
def test_bad_rows_are_named(rows: list[Any], complaint: tuple[str, ...]) -> None:
    with expect_error(ConfigError, *complaint):
        tasks_from_rows(rows, "train_dataset")


@pytest.mark.parametrize("rows", [5, "tasks.jsonl", b"rows", {"a": 1}, None, object], ids=repr)
def test_what_is_no_series_of_rows_is_refused(rows: Any) -> None:
    with expect_error(ConfigError, "bad-task", "train_dataset", repr(rows)):
        tasks_from_rows(rows, "train_dataset")


FACTS = """
version = "1.0"
[environment]
memory_mb = 64
cpus = 2
[verifier]
user = "root"
[metadata]
author = "me"
"""


def write_task(directory: Path, name: str, facts: str = FACTS) -> Path:
    task = directory / name
    files = {"instruction.md": "Work.", "tests/test.sh": "true", "task.toml": facts}
    for path, text in (files | {"environment/Dockerfile": "FROM scratch\nRUN make\n"}).items():
        (task / path).parent.mkdir(parents=True, exist_ok=True)
        (task / path).write_text(text)
    return task


def read_directories(directory: Path) -> list[Task]:
    return list(TaskDirectories.tasks("train", TaskDirectoriesParams(directory=str(directory))))


def test_ignored_parts_of_all_tasks_are_one_notice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        write_task(tmp_path, name)
    forget_warnings()
    tasks = read_directories(tmp_path)
    (notice,) = capsys.readouterr().err.splitlines()
    assert " environment.cpus, environment/Dockerfile, verifier.user " in notice
    assert tasks[0].data[TASK_DIRECTORY]["memory_mb"] == 64


@pytest.mark.parametrize("file", ["instruction.md", "task.toml"])
def test_hint_is_the_file_with_the_mistake(tmp_path: Path, file: str) -> None:
    (write_task(tmp_path, "a") / file).write_bytes(b"\xff")
    with expect_error(ConfigError, "bad-task-directory") as caught:
        read_directories(tmp_path)
    assert str(tmp_path / "a" / file) in caught.value.hint


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]


def build_prompt(task: dict[str, Any], **options: Any) -> Any:
    return Question(QuestionParams(**options)).reset(task)


@pytest.mark.parametrize(
    ("task", "options", "prompt"),
    [
        ({"question": "2+2?", "answer": "4"}, {}, "2+2?"),
        ({"question": "no", "prompt": "2+2?", "problem": "no"}, {}, "2+2?"),
        ({"prompt": None, "problem": "2+2?"}, {}, "2+2?"),
        ({"messages": MESSAGES}, {}, MESSAGES),
        ({"prompt": MESSAGES}, {}, MESSAGES),
        ({"question": "no", "task": "2+2?"}, {"prompt": "task"}, "2+2?"),
    ],
)
def test_it_asks_the_first_of_the_usual_columns(task: dict[str, Any], options: dict[str, Any], prompt: Any) -> None:
    assert build_prompt(task, **options) == prompt
    assert Question(QuestionParams()).step("4") == Outcome(done=True)


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("{question}\nBe brief.", "2+2?\nBe brief."),
        (r"{question} Write \boxed{} or \boxed{answer}.", r"2+2? Write \boxed{} or \boxed{answer}."),
        ("{question} {{answer}} {hint}", "2+2? {answer} 3"),
    ],
)
def test_a_template_is_filled_with_columns_and_leaves_other_braces(template: str, prompt: str) -> None:
    assert build_prompt({"question": "2+2?", "answer": "4", "hint": 3}, template=template) == prompt


def test_system_prompt_replaces_the_first_one() -> None:
    system = {"role": "system", "content": "Think."}
    assert build_prompt({"question": "2+2?"}, system_prompt="Think.") == [system, {"role": "user", "content": "2+2?"}]
    assert build_prompt({"messages": MESSAGES}, system_prompt="Think.") == [system, MESSAGES[1]]


@pytest.mark.parametrize(
    ("task", "options", "said"),
    [
        ({"text": "2+2?", "answer": "4"}, {}, ("missing-column",)),
        ({"question": "2+2?"}, {"prompt": "task"}, ("missing-column", "'task'")),
        ({"question": 4}, {}, ("bad-row", "4")),
        ({"question": " \n"}, {}, ("bad-prompt", "empty prompt")),
        ({"messages": [{"role": "human", "content": "2+2?"}]}, {}, ("bad-row", "'human'")),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": "4"}]}, {}, ("bad-row",)),
        ({"question": "2+2?", "tools": [{"name": "add"}]}, {}, ("bad-row", "tools")),
        ({"question": "2+2?"}, {"template": "{qestion}"}, ("bad-prompt", "'qestion'")),
        ({"messages": MESSAGES}, {"template": "{messages}!"}, ("bad-prompt",)),
    ],
)
def test_bad_prompts_are_errors(task: dict[str, Any], options: dict[str, Any], said: tuple[str, ...]) -> None:
    with expect_error(ConfigError, *said) as caught:
        build_prompt(task, **options)
    assert caught.value.hint


def test_it_has_no_own_tasks() -> None:
    assert Question.tasks("val", QuestionParams()) == []
    with expect_error(ConfigError, "no-dataset", "`data.train_dataset`", "--data FILE"):
        Question.tasks("train", QuestionParams())


def test_a_prompt_and_a_template_exclude_each_other() -> None:
    with pytest.raises(ValidationError):
        QuestionParams(template="What is the answer?")
    check_question(QuestionParams(template="{problem}!"))
    with expect_error(ConfigError, "conflicting-keys", "'question'"):
        check_question(QuestionParams(prompt="problem", template="{problem}!"))
