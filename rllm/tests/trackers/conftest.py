"""A run folder, and what a tracker is told about its run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rllm.runs.run_directory import RunDirectory
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import Episode, TerminationReason, Trajectory
from rllm_core.schema.run_sections import TrainerSection


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    opened = RunDirectory.open(TrainerSection(output_dir=str(tmp_path)))
    yield opened
    opened.close()


@pytest.fixture
def run(directory: RunDirectory) -> TrackedRun:
    config = {"rllm": {"rollout": {"n": 8}, "trainer": {"logger": ["console", {"name": "tensorboard"}]}}, "data": None}
    return TrackedRun(directory=directory.path, project_name="numbers", experiment_name="first", config=config)


@pytest.fixture
def make_step() -> Callable[..., TrainStep]:
    """A step with an attempt for each reward, which says it."""

    def make(number: int, *rewards: float | None) -> TrainStep:
        episodes = []
        for place, reward in enumerate(rewards):
            trajectory = Trajectory("agent", reward=reward, uid=f"t:{place}/agent")
            trajectory.add_step(
                [1], [2], [-1.0], text=f"<b>{reward}</b>", messages=[{"role": "user", "content": "a|b"}]
            )
            ending = TerminationReason.ENV_DONE
            episodes.append(Episode(id=f"t:{place}", trajectories=[trajectory], termination_reason=ending))
        return TrainStep(global_step=number, epoch=0, total_steps=9, tasks=[], generated=episodes)

    return make
