"""Files of rows in an empty directory, a cache that goes with the test, and no network."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from rllm_core.data.tasks import LazyTasks
from rllm_data.columns import HfParams
from rllm_data.dataset import read_tasks

Rows = Sequence[dict[str, Any]]
Read = Callable[..., LazyTasks]


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(*_: object) -> None:
        raise OSError("sockets are denied")

    monkeypatch.setattr(socket.socket, "connect", deny)
    monkeypatch.setattr(socket, "getaddrinfo", deny)


@pytest.fixture
def read() -> Read:
    """Read with options, as a config file gives them."""
    return lambda path, **options: read_tasks(HfParams(path=str(path), **options))


def write_parquet(path: str, rows: Rows) -> str:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def write_lines(path: str, rows: Rows) -> str:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
