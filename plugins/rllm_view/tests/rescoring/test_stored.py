"""Stored episodes as training data: their tasks, the loaded rollouts, and the errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from expecting import expect_error

from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import Episode, Task
from rllm_core.errors import ConfigError
from rllm_core.schema.run_config import RunConfig
from rllm_plugin_kit import stage_context
from rllm_record.steps import RecordedEpisode, RecordedTrajectory, Sampler, StepFiles
from rllm_view.plugin import StoredParams
from rllm_view.rescoring.source import EpisodesError
from rllm_view.rescoring.stored import BringStored, StoredTask, read_stored

Make = Callable[..., list[Episode]]


def record(directory: Path, step: int, episodes: Sequence[Episode], sampler: Sampler | None = None) -> None:
    """Write a step in the format of a run."""
    generated = [
        RecordedEpisode(
            uid=f"{step}.0:{each.id}",
            step=step,
            batch=0,
            episode=each,
            trajectories=tuple(
                RecordedTrajectory(uid=each.uid, trajectory=each, reward_given=None, reward_used=None)
                for each in each.trajectories
            ),
            task={"name": each.task_id},
        )
        for each in episodes
    ]
    StepFiles(directory).write(step, generated, (), "tokens", sampler)


def stored_in(directory: Path, **options: Any) -> list[StoredTask]:
    return read_stored(StoredParams(path=str(directory), **options))


def brought(tasks: Sequence[Task], renderer: Any = None, **sampling: Any) -> TrainStep:
    """A step after the stage, in a run with `renderer` and these settings of its sampling."""
    step = TrainStep(global_step=0, epoch=0, total_steps=1, tasks=list(tasks), renderer=renderer)
    context = stage_context(config=RunConfig.model_validate({"sampling": {"train": sampling}}))
    asyncio.run(BringStored(context, NoParams())(step))
    return step


def test_rollouts_of_several_steps_are_compared_within_each(tmp_path: Path, episodes: Make) -> None:
    record(tmp_path, 0, episodes({"a": [1.0, 0.0], "b": [0.5]}))
    record(tmp_path, 1, episodes({"a": [0.25]}))
    tasks = stored_in(tmp_path)
    assert [(task.id, task.data, len(task.rollouts)) for task in tasks] == [
        ("a@0", {"name": "a"}, 2),
        ("b", {"name": "b"}, 1),
        ("a@1", {"name": "a"}, 1),
    ]
    assert [episode.task_id for episode in brought(tasks).episodes] == ["a@0", "a@0", "b", "a@1"]


def test_rollouts_are_together_if_task_groups_them(tmp_path: Path, episodes: Make) -> None:
    record(tmp_path, 0, episodes({"a": [1.0, 0.0], "b": [0.5]}))
    record(tmp_path, 1, episodes({"a": [0.25]}))
    tasks = stored_in(tmp_path, group_by="task")
    assert [(task.id, task.data, len(task.rollouts)) for task in tasks] == [
        ("a", {"name": "a"}, 3),
        ("b", {"name": "b"}, 1),
    ]
    assert [episode.trajectories[0].reward for episode in tasks[0].episodes()] == [1.0, 0.0, 0.25]
    assert [episode.id for episode in tasks[0].episodes()] == ["a:0", "a:1", "a:2"]
    assert [episode.trajectories[0].uid for episode in tasks[0].episodes()] == ["a:0/agent", "a:1/agent", "a:2/agent"]


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


def test_a_step_without_tasks_is_skipped() -> None:
    assert brought([]).skip_reason == "nothing_stored"


def test_task_without_stored_rollouts_is_rejected() -> None:
    with expect_error(ConfigError, "no-stored-rollout", "'new'"):
        brought([Task(id="new")])


def test_tokens_without_log_probs_are_rejected(tmp_path: Path, episodes: Make) -> None:
    record(tmp_path, 0, episodes({"a": [1.0]}, logprobs_known=False))
    with expect_error(ConfigError, "missing-logprobs", "'a:0/agent'"):
        brought(stored_in(tmp_path))


class Noted:
    """A renderer with a recorded tokenizer."""


def renderer_of(vocabulary: dict[str, int]) -> Any:
    from rllm_backend_kit.portable_renderer import remember_origin

    renderer: Any = Noted()
    setup: Any = SimpleNamespace(tokenizer=SimpleNamespace(get_vocab=lambda: vocabulary))
    remember_origin(renderer, setup, None)
    return renderer


def digest_of(vocabulary: dict[str, int]) -> str | None:
    from rllm_backend_kit.portable_renderer import tokenizer_digest

    return tokenizer_digest(renderer_of(vocabulary))


def test_tokens_of_a_different_tokenizer_are_rejected(tmp_path: Path, episodes: Make) -> None:
    record(tmp_path, 0, episodes({"a": [1.0]}), Sampler(tokenizer=digest_of({"x": 1, "y": 2})))
    assert brought(stored_in(tmp_path), renderer_of({"y": 2, "x": 1})).episodes
    with expect_error(ConfigError, "tokenizer-mismatch"):
        brought(stored_in(tmp_path), renderer_of({"x": 2, "y": 1}))


def test_tokens_of_an_unknown_sampler_are_accepted(tmp_path: Path, episodes: Make) -> None:
    record(tmp_path, 0, episodes({"a": [1.0]}))
    assert brought(stored_in(tmp_path), renderer_of({"x": 1}), temperature=0.5).episodes


def test_tokens_of_a_different_temperature_are_rejected(tmp_path: Path, episodes: Make) -> None:
    record(tmp_path, 0, episodes({"a": [1.0]}), Sampler(temperature=0.7))
    assert brought(stored_in(tmp_path), temperature=0.7).episodes
    with expect_error(ConfigError, "temperature-mismatch", "sampling.train.temperature"):
        brought(stored_in(tmp_path))
