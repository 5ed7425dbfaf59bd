"""Stored episodes as training data: their tasks, the loaded rollouts, and the errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from expecting import expect_error

from rllm_backend_kit.portable_renderer import remember_origin, tokenizer_digest
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import Episode, Task
from rllm_core.errors import ConfigError
from rllm_core.schema.run_config import RunConfig
from rllm_plugin_kit import stage_context
from rllm_record.steps import Sampler, StepFiles
from rllm_view.plugin import StoredParams
from rllm_view.rescoring.source import EpisodesError
from rllm_view.rescoring.stored import BringStored, StoredTask, read_stored

from .conftest import as_recorded

Make = Callable[..., list[Episode]]


def record(directory: Path, step: int, episodes: Sequence[Episode], sampler: Sampler | None = None) -> None:
    """Write a step in the format of a run."""
    StepFiles(directory).write(step, as_recorded(step, 0, episodes), (), "tokens", sampler)


def stored_in(directory: Path, **options: Any) -> list[StoredTask]:
    return read_stored(StoredParams(path=str(directory), **options))


def brought(tasks: Sequence[Task], renderer: Any = None, **sampling: Any) -> TrainStep:
    """A step after the stage, in a run with `renderer` and these settings of its sampling."""
    step = TrainStep(global_step=0, epoch=0, total_steps=1, tasks=list(tasks), renderer=renderer)
    context = stage_context(config=RunConfig.model_validate({"sampling": {"train": sampling}}))
    asyncio.run(BringStored(context, NoParams())(step))
    return step


def test_rollouts_of_steps_are_apart_unless_grouped_by_task(tmp_path: Path, episodes: Make) -> None:
    record(tmp_path, 0, episodes({"a": [1.0, 0.0], "b": [0.5]}))
    record(tmp_path, 1, episodes({"a": [0.25]}))
    tasks = stored_in(tmp_path)
    expected = [("a@0", {"name": "a"}, 2), ("b", {"name": "b"}, 1), ("a@1", {"name": "a"}, 1)]
    assert [(task.id, task.data, len(task.rollouts)) for task in tasks] == expected
    assert [episode.task_id for episode in brought(tasks).episodes] == ["a@0", "a@0", "b", "a@1"]

    tasks = stored_in(tmp_path, group_by="task")
    expected = [("a", {"name": "a"}, 3), ("b", {"name": "b"}, 1)]
    assert [(task.id, task.data, len(task.rollouts)) for task in tasks] == expected
    together = tasks[0].episodes()
    assert [episode.trajectories[0].reward for episode in together] == [1.0, 0.0, 0.25]
    assert [episode.id for episode in together] == ["a:0", "a:1", "a:2"]
    assert [episode.trajectories[0].uid for episode in together] == ["a:0/agent", "a:1/agent", "a:2/agent"]


def test_rollouts_without_a_model_call_are_skipped(tmp_path: Path, episodes: Make) -> None:
    record(tmp_path, 0, [*episodes({"a": [1.0]}), Episode(id="b:0")])
    assert [task.id for task in stored_in(tmp_path)] == ["a"]
    record(tmp_path / "none", 0, [Episode(id="b:0")])
    with expect_error(EpisodesError, "no-episodes"):
        stored_in(tmp_path / "none")


def test_stage_loads_all_rollouts_of_its_tasks(tmp_path: Path, episodes: Make) -> None:
    record(tmp_path, 0, episodes({"a": [1.0, 0.0], "b": [0.5, 0.5, 0.0], "c": [1.0]}))
    step = brought(stored_in(tmp_path)[:2])
    assert [episode.id for episode in step.episodes] == ["a:0", "a:1", "b:0", "b:1", "b:2"]
    assert step.generated == step.episodes
    assert step.metrics["batch/episodes"] == 5


def test_changes_of_stages_do_not_reach_the_store(tmp_path: Path, episodes: Make) -> None:
    record(tmp_path, 0, episodes({"a": [1.0]}))
    tasks = stored_in(tmp_path)
    first = brought(tasks).episodes[0].trajectories[0]
    first.reward, first.name = 0.0, "changed"
    again = brought(tasks).episodes[0].trajectories[0]
    assert (again.reward, again.name) == (1.0, "agent")


def test_tasks_without_rollouts_are_skipped_or_rejected() -> None:
    assert brought([]).skip_reason == "nothing_stored"
    with expect_error(ConfigError, "no-stored-rollout", "'new'"):
        brought([Task(id="new")])


def test_tokens_without_log_probs_are_rejected(tmp_path: Path, episodes: Make) -> None:
    record(tmp_path, 0, episodes({"a": [1.0]}, logprobs_known=False))
    with expect_error(ConfigError, "missing-logprobs", "'a:0/agent'"):
        brought(stored_in(tmp_path))


def renderer_of(vocabulary: dict[str, int]) -> Any:
    """A renderer with a recorded tokenizer."""
    renderer: Any = type("Noted", (), {})()
    setup: Any = SimpleNamespace(tokenizer=SimpleNamespace(get_vocab=lambda: vocabulary))
    remember_origin(renderer, setup, None)
    return renderer


def digest_of(vocabulary: dict[str, int]) -> str | None:
    return tokenizer_digest(renderer_of(vocabulary))


def test_tokens_of_a_different_sampler_are_rejected(tmp_path: Path, episodes: Make) -> None:
    sampler = Sampler(tokenizer=digest_of({"x": 1, "y": 2}), temperature=0.7)
    record(tmp_path / "known", 0, episodes({"a": [1.0]}), sampler)
    tasks, same = stored_in(tmp_path / "known"), renderer_of({"y": 2, "x": 1})
    assert brought(tasks, same, temperature=0.7).episodes
    with expect_error(ConfigError, "tokenizer-mismatch"):
        brought(tasks, renderer_of({"x": 2, "y": 1}), temperature=0.7)
    with expect_error(ConfigError, "temperature-mismatch", "sampling.train.temperature"):
        brought(tasks, same)
    record(tmp_path / "unknown", 0, episodes({"a": [1.0]}))
    assert brought(stored_in(tmp_path / "unknown"), renderer_of({"x": 1}), temperature=0.5).episodes
