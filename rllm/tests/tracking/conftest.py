"""Episodes, groups and run folders to take figures of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from rllm.runs.run_directory import RunDirectory
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.data.types import Episode, TerminationReason, Trajectory
from rllm_core.schema.run_sections import TrainerSection


@pytest.fixture
def rollout() -> Callable[..., Episode]:
    """An episode with one trajectory per reward."""

    def make(
        task: str,
        index: int = 0,
        *,
        correct: bool = False,
        rewards: Sequence[float | None] = (),
        reason: TerminationReason = TerminationReason.ENV_DONE,
        source: str = "default",
        metrics: dict[str, float] | None = None,
    ) -> Episode:
        return Episode(
            id=f"{task}:{index}",
            trajectories=[Trajectory("agent", reward=reward) for reward in rewards],
            is_correct=correct,
            termination_reason=reason,
            data_source=source,
            metrics=metrics or {},
        )

    return make


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    opened = RunDirectory.open(TrainerSection(output_dir=str(tmp_path)))
    yield opened
    opened.close()


@pytest.fixture
def run(directory: RunDirectory) -> TrackedRun:
    config = {"rllm": {"rollout": {"n": 8}, "trainer": {"logger": ["console", {"name": "tensorboard"}]}}, "data": None}
    return TrackedRun(directory=directory.path, project_name="numbers", experiment_name="first", config=config)
