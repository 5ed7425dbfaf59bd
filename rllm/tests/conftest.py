"""Run directories whose metrics tests read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rllm.runs.run_directory import RunDirectory
from rllm_core.contracts.tracker import TrackedRun
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
