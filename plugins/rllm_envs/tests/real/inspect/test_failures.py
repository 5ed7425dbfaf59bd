"""Failures of a task's parts are missing rewards, failures of the model are its own, and wrong settings are named."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error
from inspect_ai._util import rich
from inspect_ai.log._samples import active_samples
from scripted_engine import Engine

from rllm_core.algorithms.columns import REWARD_ERROR
from rllm_core.errors import BackendError, ConfigError, RolloutError
from rllm_envs.inspect.loading import InspectTasks, check_task
from rllm_envs.inspect.options import InspectParams

from .bridge import TASKS, episodes, make_params, opened, roll_out
from .script import say_to_prompt

MANY = "from inspect_ai import task\n@task\ndef {}():\n    raise RuntimeError('not made')\n"


def test_failed_parts_of_a_task_are_missing_rewards() -> None:
    ours, _ = episodes(say_to_prompt, make_params("faults"))
    found = [(each.trajectories[0].reward, each.trajectories[0].info.get(REWARD_ERROR, "")) for each in ours]
    assert [reward for reward, _ in found] == [0.5, None, None, None, None, None]
    parts = ["", "the solver is broken", "the scorer is broken", "no grade", "perhaps", "[1, 2]"]
    assert [part in cause for part, (_, cause) in zip(parts, found, strict=True)] == [True] * 6
    assert [bool(cause) for _, cause in found] == [False, True, True, True, True, True]


def test_failed_solver_is_named_by_its_line() -> None:
    line = Path(TASKS).read_text().splitlines().index('        raise KeyError("no model call")') + 1
    with expect_error(RolloutError, "environment-failed", f"({TASKS}, line {line})") as caught:
        episodes(say_to_prompt, make_params("stopped"))
    assert caught.value.details.splitlines()[-1] == "KeyError: 'no model call'"


def test_dictionary_needs_a_key() -> None:
    ours, _ = episodes(say_to_prompt, make_params("guesses"))
    for episode in ours:
        assert episode.trajectories[0].reward is None
        assert "reward=right_and_turns.KEY" in episode.trajectories[0].info[REWARD_ERROR]


def test_failed_engine_is_the_error_of_the_rollout() -> None:
    def fail(prompt: str) -> str:
        raise BackendError("engine-failed", "The engine has stopped.", "")

    with expect_error(BackendError, "engine-failed"):
        episodes(fail, make_params("sums"))


def test_prompt_that_is_too_long_ends_the_rollout() -> None:
    engine = Engine(say_to_prompt, max_context=20)

    async def run() -> Any:
        params = make_params("sums")
        async with opened(engine, params) as task:
            return await roll_out(engine, task, InspectTasks.tasks("val", params)[0].data, "t:0")

    episode = asyncio.run(run())
    assert episode.termination_reason.value == "max_prompt_length_exceeded"
    assert episode.trajectories == []


def test_cancelled_rollout_stops_its_sample_and_others_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    # To color the tracebacks of hundreds of samples takes minutes, so Ctrl-C must not wait for it.
    colored: list[Any] = []
    monkeypatch.setattr(rich, "rich_traceback", lambda *error, **options: colored.append(error) or "")
    asked, release = asyncio.Event(), asyncio.Event()

    class Slow(Engine):
        async def generate(self, prompt_ids: Any, sampling: Any, *, session: str) -> Any:
            if not asked.is_set():
                asked.set()
                await release.wait()
            return await super().generate(prompt_ids, sampling, session=session)

    async def run() -> float | None:
        engine, params = Slow(say_to_prompt), make_params("sums")
        first, second, *_ = InspectTasks.tasks("val", params)
        async with opened(engine, params) as task:
            waiting = asyncio.create_task(roll_out(engine, task, first.data, "t:0"))
            await asyncio.wait_for(asked.wait(), 60)
            waiting.cancel()
            await asyncio.wait({waiting})
            assert waiting.cancelled()
            async with asyncio.timeout(60):
                while active_samples():
                    await asyncio.sleep(0.01)
            episode = await roll_out(engine, task, second.data, "t:1")
            return episode.trajectories[0].reward

    assert asyncio.run(run()) == 1.0
    assert colored == []


def test_process_keeps_its_logging_and_hooks() -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level, sys.excepthook)
    episodes(say_to_prompt, make_params("sums", args={"count": 1}))
    assert (list(root.handlers), root.level, sys.excepthook) == before


def test_no_file_is_left_without_a_log_directory(tmp_path: Path) -> None:
    episodes(say_to_prompt, make_params("sums", args={"count": 1}))
    assert [each.name for each in tmp_path.iterdir()] in ([], ["data"])
    episodes(say_to_prompt, make_params("sums", args={"count": 1}, log_dir=tmp_path / "logs"))
    assert len(list((tmp_path / "logs").glob("*.eval"))) == 1


@pytest.mark.parametrize(
    ("code", "task", "options"),
    [
        ("unknown-choice", "no_file.py@sums", {}),
        ("missing-package", "inspect_evals/no_such_task", {}),
        ("unknown-choice", TASKS, {}),
        ("unknown-choice", f"{TASKS}@no_such_task", {}),
        ("unknown-choice", f"{TASKS}@sums@sums", {}),
        ("duplicate-task-id", f"{TASKS}@repeated", {}),
        ("unknown-choice", f"{TASKS}@sums", {"args": {"cuont": 3}}),
        ("environment-options-rejected", f"{TASKS}@sums", {"args": {"count": "three"}}),
        ("unknown-choice", f"{TASKS}@sums", {"reward": "choice"}),
        ("bad-task", f"{TASKS}@unscored", {}),
        ("environment-options-rejected", f"{TASKS}@graded", {"model_roles": {"grader": "no_provider/model"}}),
    ],
)
def test_dry_run_names_what_is_missing(code: str, task: str, options: dict[str, Any]) -> None:
    with expect_error(ConfigError, code):
        check_task(InspectParams(task=task, **options))


@pytest.mark.parametrize(
    ("task", "options", "hint"),
    [
        (f"{TASKS}@sum", {}, "'sums'"),
        (f"{TASKS}@sums", {"args": {"cuont": 3}}, "'count'"),
        (f"{TASKS}@sums", {"args": {"zzz": 3}}, "count, first"),
    ],
)
def test_hint_has_names_of_the_file(
    task: str, options: dict[str, Any], hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    with expect_error(ConfigError, "unknown-choice", hint):
        check_task(InspectParams(task=task, **options))
    assert caplog.records == []


@pytest.mark.parametrize(
    ("code", "text", "place"),
    [
        ("environment-options-rejected", "x = 1\ndef f(:\n", "line 2)"),
        ("missing-package", "x = 1\nimport no_such_module\n", "(task.py, line 2)"),
        ("environment-options-rejected", "\nraise ImportError('old')\n", "(task.py, line 2)"),
        ("unknown-choice", "x = 1\n", "task.py has no task"),
        ("unknown-choice", MANY.format("a") + MANY.format("b"), "2 tasks: a, b"),
        ("environment-options-rejected", MANY.format("a"), "(task.py, line 4)"),
    ],
)
def test_file_that_does_not_load(code: str, text: str, place: str) -> None:
    Path("task.py").write_text(text)
    with expect_error(ConfigError, code, place):
        check_task(InspectParams(task="task.py"))


def test_wrong_argument_is_named_by_its_line() -> None:
    with expect_error(ConfigError, "environment-options-rejected", f"({TASKS}, line "):
        check_task(InspectParams(task=f"{TASKS}@sums", args={"count": "three"}))


def test_missing_api_key_has_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "AZUREAI_OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with expect_error(ConfigError, "environment-options-rejected", "No OPENAI_API_KEY,", "env_args.model_roles"):
        check_task(InspectParams(task=f"{TASKS}@graded", model_roles={"grader": "openai/gpt-5-mini"}))
