"""A run folder, and what a tracker is told about its run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rllm_core.contracts.tracker import TrackedRun
from rllm_core.runs.run_folder import RunFolder
from rllm_core.schema.run_sections import TrainerSection


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    opened = RunFolder.open(TrainerSection(output_dir=str(tmp_path)))
    yield opened
    opened.close()


@pytest.fixture
def run(folder: RunFolder) -> TrackedRun:
    config = {"rllm": {"rollout": {"n": 8}, "trainer": {"logger": ["console", {"name": "jsonl"}]}}, "data": None}
    return TrackedRun(folder=folder.path, project_name="numbers", experiment_name="first", config=config)
