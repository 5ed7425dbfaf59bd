"""Every dataset of this repository keeps the contract of datasets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from rllm_core.data.types import Episode, Step, Trajectory
from rllm_plugin_kit import DatasetContract
from rllm_record.steps import RecordedEpisode, RecordedTrajectory, StepFiles

ROWS = [{"id": str(number), "question": f"{number} + {number}?", "parts": [number, None]} for number in range(5)]


class TestJsonl(DatasetContract):
    name = "rllm/jsonl"
    options: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"path": "tasks.jsonl"},
        {"path": "tasks.jsonl", "id_key": "question", "data_source": "sums"},
    )
    bad_options = (
        {},
        {"path": ""},
        {"path": "not-there.jsonl"},
        {"path": "empty.jsonl"},
        {"path": "tasks.jsonl", "id_key": "name"},
    )

    @pytest.fixture(autouse=True)
    @staticmethod
    def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.chdir(tmp_path)
        Path("tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        Path("empty.jsonl").touch()
        yield


class TestStored(DatasetContract):
    name = "rllm-record/stored"
    options: ClassVar[Sequence[Mapping[str, Any]]] = ({"path": "sessions"},)
    bad_options = ({}, {"path": ""}, {"path": "not-there"}, {"path": "empty"})

    @pytest.fixture(autouse=True)
    @staticmethod
    def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.chdir(tmp_path)
        Path("empty").mkdir()
        rollouts = [_rollout(f"{task}:{number}") for task in ("a", "b") for number in range(2)]
        StepFiles(Path("sessions")).write(0, rollouts, (), "tokens")
        yield


def _rollout(name: str) -> RecordedEpisode:
    trajectory = Trajectory("agent", [Step([1], [2], [-0.5])], 1.0)
    recorded = RecordedTrajectory(uid=trajectory.uid, trajectory=trajectory, reward_given=None, reward_used=None)
    episode = Episode(id=name, trajectories=[trajectory])
    return RecordedEpisode(
        uid=f"0.0:{name}", step=0, batch=0, episode=episode, trajectories=(recorded,), task={"name": name}
    )


class TestHf(DatasetContract):
    name = "rllm-data/hf"
    options: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"path": "tasks.parquet"},
        {
            "path": "tasks.parquet",
            "columns": {"answer": "parts"},
            "drop_columns": ["id"],
            "shuffle_seed": 1,
            "limit": 3,
        },
        {"path": "tasks.parquet", "val_fraction": 0.5, "part": "val"},
        {"path": "directory", "split": "test[1:]"},
    )
    bad_options = (
        {},
        {"path": "not-there.parquet"},
        {"path": "empty.csv"},
        {"path": "tasks.parquet", "columns": {"prompt": "name"}},
        {"path": "tasks.parquet", "split": "test"},
        {"path": "tasks.parquet", "part": "val"},
        {"path": "tasks.parquet", "format": "verl"},
    )

    @pytest.fixture(autouse=True)
    @staticmethod
    def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        Path("directory").mkdir()
        for file in ("tasks.parquet", "directory/test.parquet"):
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), file)
        Path("empty.csv").touch()
        yield
