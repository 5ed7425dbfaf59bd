"""Episodes on disk: one file per step, none of a step that is made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from rllm_core.pipeline.step import TrainStep
from rllm_core.tracking.episode_log import EpisodeLog, read_episodes
from rllm_core.types import Episode, Trajectory


def _step(global_step: int) -> TrainStep:
    episodes = [Episode(id=f"task:{index}", trajectories=[Trajectory("agent", reward=1.0)]) for index in range(2)]
    return TrainStep(global_step=global_step, epoch=0, total_steps=4, tasks=[], generated=episodes)


def test_a_steps_episodes_come_back_as_they_were(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    EpisodeLog(folder).on_batch_end(_step(3))
    assert [episode.id for episode in read_episodes(folder / "step_000003.jsonl.gz")] == ["task:0", "task:1"]


@pytest.mark.parametrize("first_step", [0, 2, 4])
def test_episodes_of_steps_that_are_made_again_are_dropped(tmp_path: Path, first_step: int) -> None:
    for step in range(4):
        EpisodeLog(tmp_path).on_batch_end(_step(step))
    (tmp_path / "step_notes.txt").touch()
    (tmp_path / "step_x.jsonl.gz").touch()
    EpisodeLog(tmp_path).on_train_start(4, first_step)
    kept = {f"step_{step:06d}.jsonl.gz" for step in range(first_step)}
    assert {file.name for file in tmp_path.iterdir()} == {*kept, "step_notes.txt", "step_x.jsonl.gz"}
