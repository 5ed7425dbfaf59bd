"""Files and weights that a run's plugins read: a resumed run names the one that changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rllm.rows.task_content import content_of
from rllm.training.resume_checks import RunSources
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry

FILES = {
    "rewards.py": "def score(rollout):\n    return 1\n",
    "tools.py": "def add(a: int, b: int) -> int:\n    return a + b\n",
    "world.py": "class World:\n    def reset(self, **row):\n        return None\n",
    "tasks/one/instruction.md": "Write one word.",
    "tasks/one/tests/test.sh": "echo 1",
    "model/config.json": "{}",
    "model/model.safetensors": "weights",
}
TASKS = {"name": "tasks", "directory": "tasks"}
MODEL = {"name": "model", "path": "model"}


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


def chosen(kind: str, choice: Any) -> Any:
    return choose(Registry.load(), kind, choice, "key")


@pytest.mark.parametrize(
    ("kind", "choice", "file", "named"),
    [
        ("reward", {"name": "python", "function": "rewards.py:score"}, "rewards.py", "reward python: rewards.py"),
        (
            "workflow",
            {"name": "tool_calling", "tools": ["tools.py:add"]},
            "tools.py",
            "workflow tool_calling: tools.py",
        ),
        ("environment", {"name": "trl", "factory": "world.py:World"}, "world.py", "environment trl: world.py"),
        ("environment", "inspect:world.py@task", "world.py", "environment inspect: world.py"),
        ("environment", TASKS, "tasks/one/tests/test.sh", "environment tasks: one"),
        ("environment", TASKS, "tasks/one/tests/new.sh", "environment tasks: one"),
        (
            "environment",
            {"name": "mixed", "environments": {"mine": TASKS}},
            "tasks/one/instruction.md",
            "environment mixed: mine: one",
        ),
        ("teacher", MODEL, "model/model.safetensors", "teacher model: model"),
        (
            "teacher",
            {"name": "by_source", "teachers": {"math": MODEL, "code": "policy:Be brief."}},
            "model/model.safetensors",
            "teacher by_source: math: model",
        ),
    ],
)
def test_changed_files_of_plugins_are_named(kind: str, choice: Any, file: str, named: str) -> None:
    plugin = chosen(kind, choice)
    before = RunSources([plugin], "warn").state_dict()
    said: list[str] = []
    RunSources([plugin], "warn").check_same(before, Path("step_000001"), said.append)
    assert said == []
    Path(file).write_text("changed")
    RunSources([plugin], "warn").check_same(before, Path("step_000001"), said.append)
    (message,) = said
    assert message.startswith(f"The source of {named} changed after step_000001 was made: line ")
    if named.endswith(("one", "model")):
        assert f"{Path(file).name} " in message


@pytest.mark.parametrize(
    "choice",
    [
        lambda directory: {**TASKS, "directory": directory},
        lambda directory: {"name": "mixed", "environments": {"mine": {**TASKS, "directory": directory}}},
    ],
)
def test_task_directories_that_move_keep_their_content(choice: Callable[[str], Any]) -> None:
    def contents(directory: str) -> list[Any]:
        environment = chosen("environment", choice(directory))
        return [content_of(task) for task in environment.registered.load().tasks("train", environment.params)]

    before = contents("tasks")
    Path("tasks").rename("elsewhere")
    assert before == contents("elsewhere") != []
