"""Places of episodes, and stored episodes as training data."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from expecting import expect_error
from recorded_episodes import record_rollouts

from rllm_backend_kit.portable_renderer import remember_origin, tokenizer_digest
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.codec import episode_to_json
from rllm_core.data.types import Episode, Task
from rllm_core.errors import ConfigError
from rllm_core.schema.run_config import RunConfig
from rllm_plugin_kit import stage_context
from rllm_record.steps import Sampler, StepFiles
from rllm_record.stored import LoadStored, StoredParams, StoredTask, read_tasks
from rllm_record.stored_episodes import EpisodesError, find_episodes, read_batches

Make = Callable[..., list[Episode]]


def record(directory: Path, step: int, episodes: Sequence[Episode], sampler: Sampler | None = None) -> None:
    """Write a step in the format of a run."""
    StepFiles(directory).write(step, record_rollouts(step, 0, episodes), (), "tokens", sampler)


def stored_in(directory: Path, **options: Any) -> list[StoredTask]:
    return read_tasks(StoredParams(path=str(directory), **options))


def run_stage(tasks: Sequence[Task], renderer: Any = None, *, max_context: int = 100, **sampling: Any) -> TrainStep:
    """A step after the stage, in a run with `renderer`, this context and these settings of its sampling."""
    step = TrainStep(global_step=0, epoch=0, total_steps=1, tasks=list(tasks), renderer=renderer)
    config = RunConfig.model_validate({"sampling": {"train": sampling}})
    context = stage_context(config=config, max_context=max_context)
    asyncio.run(LoadStored(context, NoParams())(step))
    return step


def test_rollouts_are_grouped_by_step_or_task(tmp_path: Path, episodes: Make) -> None:
    record(tmp_path, 0, episodes({"a": [1.0, 0.0], "b": [0.5]}))
    record(tmp_path, 1, episodes({"a": [0.25]}))
    tasks = stored_in(tmp_path)
    expected = [("a@0", {"name": "a"}, 2), ("b", {"name": "b"}, 1), ("a@1", {"name": "a"}, 1)]
    assert [(task.id, task.data, len(task.rollouts)) for task in tasks] == expected
    assert [episode.task_id for episode in run_stage(tasks).episodes] == ["a@0", "a@0", "b", "a@1"]

    tasks = stored_in(tmp_path, group_by="task")
    expected = [("a", {"name": "a"}, 3), ("b", {"name": "b"}, 1)]
    assert [(task.id, task.data, len(task.rollouts)) for task in tasks] == expected
    together = tasks[0].episodes()
    assert [episode.trajectories[0].reward for episode in together] == [1.0, 0.0, 0.25]
    assert [episode.id for episode in together] == ["a:0", "a:1", "a:2"]
    assert [episode.trajectories[0].uid for episode in together] == ["a:0/agent", "a:1/agent", "a:2/agent"]


def test_unused_rollouts_are_counted(tmp_path: Path, episodes: Make, capsys: Any) -> None:
    record(tmp_path, 0, [*episodes({"a": [1.0, 0.0, 0.0]}), Episode(id="b:0")])
    assert [len(task.rollouts) for task in stored_in(tmp_path, min_reward=0.5)] == [1]
    assert "2 without a reward of at least min_reward=0.5, 1 without a model call" in capsys.readouterr().err
    record(tmp_path / "none", 0, [Episode(id="b:0")])
    with expect_error(EpisodesError, "no-episodes"):
        stored_in(tmp_path / "none")


def test_stage_loads_all_rollouts_of_its_tasks(tmp_path: Path, episodes: Make) -> None:
    record(tmp_path, 0, episodes({"a": [1.0, 0.0], "b": [0.5, 0.5, 0.0], "c": [1.0]}))
    step = run_stage(stored_in(tmp_path)[:2])
    assert [episode.id for episode in step.episodes] == ["a:0", "a:1", "b:0", "b:1", "b:2"]
    assert step.generated == step.episodes
    assert step.metrics["batch/episodes"] == 5


def test_rollouts_above_the_context_are_masked(tmp_path: Path, episodes: Make) -> None:
    record(tmp_path, 0, episodes({"a": [1.0, 0.0], "b": [0.5]}))
    tasks = stored_in(tmp_path)
    buffer = tasks[0].rollouts[0].episode.trajectories[0].tokens
    step = run_stage(tasks, max_context=len(buffer) - 1)
    assert (step.episodes, len(step.decisions), step.metrics["batch/rows_dropped"]) == ([], 3, 3)
    assert (step.decisions[0].rule, step.decisions[0].numbers["tokens"]) == ("stored/too_long", len(buffer))
    assert len(run_stage(tasks, max_context=len(buffer)).episodes) == 3


def test_changes_of_stages_do_not_reach_the_store(tmp_path: Path, episodes: Make) -> None:
    record(tmp_path, 0, episodes({"a": [1.0]}))
    tasks = stored_in(tmp_path)
    first = run_stage(tasks).episodes[0].trajectories[0]
    first.reward, first.name = 0.0, "changed"
    again = run_stage(tasks).episodes[0].trajectories[0]
    assert (again.reward, again.name) == (1.0, "agent")


def test_tasks_without_rollouts_are_skipped_or_rejected() -> None:
    assert run_stage([]).skip_reason == "nothing_stored"
    with expect_error(ConfigError, "no-stored-rollout", "'new'"):
        run_stage([Task(id="new")])


def test_tokens_without_log_probs_are_rejected(tmp_path: Path, episodes: Make) -> None:
    record(tmp_path, 0, episodes({"a": [1.0]}, logprobs_known=False))
    with expect_error(ConfigError, "missing-logprobs", "'a:0/agent'"):
        run_stage(stored_in(tmp_path))


def renderer_of(vocabulary: dict[str, int]) -> Any:
    """A renderer with a recorded tokenizer. Tokens that are not in its vocabulary have no text."""
    texts = {index: token for token, index in vocabulary.items()}
    renderer: Any = type("Noted", (), {"text": lambda self, ids: "".join(texts.get(int(each), "") for each in ids)})()
    setup: Any = SimpleNamespace(tokenizer=SimpleNamespace(get_vocab=lambda: vocabulary))
    remember_origin(renderer, setup, None)
    return renderer


def digest_of(vocabulary: dict[str, int]) -> str | None:
    return tokenizer_digest(renderer_of(vocabulary))


def test_tokens_of_a_different_sampler_are_rejected(tmp_path: Path, episodes: Make) -> None:
    sampler = Sampler(tokenizer=digest_of({"x": 1, "y": 2}), temperature=0.7)
    record(tmp_path / "known", 0, episodes({"a": [1.0]}), sampler)
    tasks, same = stored_in(tmp_path / "known"), renderer_of({"y": 2, "x": 1})
    assert run_stage(tasks, same, temperature=0.7).episodes
    with expect_error(ConfigError, "tokenizer-mismatch"):
        run_stage(tasks, renderer_of({"x": 2, "y": 1}), temperature=0.7)
    with expect_error(ConfigError, "temperature-mismatch", "sampling.train.temperature"):
        run_stage(tasks, same)
    record(tmp_path / "unknown", 0, episodes({"a": [1.0]}))
    assert run_stage(stored_in(tmp_path / "unknown"), renderer_of({"x": 1}), temperature=0.5).episodes


def test_a_vocabulary_with_more_tokens_is_accepted(tmp_path: Path, episodes: Make) -> None:
    (stored,) = episodes({"a": [1.0]})
    stored.trajectories[0].steps[0].text = "zz"
    record(tmp_path, 0, [stored], Sampler(tokenizer=digest_of({"x": 1, "z": 3})))
    tasks = stored_in(tmp_path)
    assert run_stage(tasks, renderer_of({"x": 1, "z": 3, "<pad>": 4})).episodes
    with expect_error(ConfigError, "tokenizer-mismatch", "'a:0'"):
        run_stage(tasks, renderer_of({"x": 3, "z": 1}))


def test_directories_and_files_lead_to_the_run(run: Path, keep: Callable[..., Path]) -> None:
    files = [keep(step, {"t": [1.0]}) for step in (10, 2)]
    assert find_episodes(run).files == ((2, files[1]), (10, files[0]))
    assert find_episodes(run / "record" / "episodes").files == ((2, files[1]), (10, files[0]))
    assert find_episodes(files[0]).files == ((10, files[0]),)
    assert {find_episodes(path).run_directory for path in (run, files[0].parent, files[0])} == {run}


def test_episodes_without_a_run_have_no_run(tmp_path: Path, keep: Callable[..., Path]) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(keep(3, {"t": [1.0]}), other / "mine.parquet")
    found = find_episodes(other / "mine.parquet")
    assert found.run_directory is None
    assert [step for step, _ in found.files] == [0]


def test_paths_without_episodes_are_errors(run: Path, keep: Callable[..., Path]) -> None:
    with expect_error(EpisodesError, "no-episodes", "rllm.record=tokens"):
        find_episodes(run)
    keep(0, {"t": [1.0]})
    with expect_error(EpisodesError, "no-episodes"):
        find_episodes(run.parent)
    with expect_error(EpisodesError, "file-not-found"):
        find_episodes(run / "typo")


def test_record_without_tokens_has_no_episodes(run: Path, keep: Callable[..., Path]) -> None:
    file = keep(0, {"t": [1.0]}, content="outcomes")
    with expect_error(EpisodesError, "no-episodes", "rllm.record"):
        find_episodes(run)
    with expect_error(EpisodesError, "record-without-tokens"):
        read_batches(file)


def test_episodes_are_read_by_rollout_batch(keep: Callable[..., Path], episodes: Callable[..., Any]) -> None:
    file = keep(0, {"t": [0.0, 1.0]}, {"t": [0.5]})
    expected = [[episode_to_json(each) for each in episodes({"t": rewards})] for rewards in ([0.0, 1.0], [0.5])]
    assert [[episode_to_json(each) for each in batch] for batch in read_batches(file)] == expected
    file.write_bytes(file.read_bytes()[:-10])
    with expect_error(EpisodesError, "file-unreadable", "step_000000.parquet"):
        read_batches(file)


def test_every_role_needs_the_smallest_reward(tmp_path: Path, episodes: Make) -> None:
    (both, one) = episodes({"a": [1.0, 1.0]}, roles=("solver", "judge"))
    one.trajectories[1].reward = 0.0
    record(tmp_path, 0, [both, one])
    (task,) = stored_in(tmp_path, min_reward=0.5)
    assert [rollout.episode.id for rollout in task.rollouts] == [both.id]
