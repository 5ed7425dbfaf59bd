"""Directories in fsspec's memory, and machines: each has its own local directories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from failing_files import URL
from fsspec.implementations.memory import MemoryFileSystem

from rllm_record.store.places import CACHE_VARIABLE, StorePlace, open_place


@pytest.fixture(autouse=True)
def _local_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))


@pytest.fixture
def place() -> Iterator[StorePlace]:
    """Return an empty directory in a store."""
    MemoryFileSystem.store.clear()
    yield open_place(URL)
    MemoryFileSystem.store.clear()
