"""A store with a session, and rows for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rllm_gateway.calls import CallStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "calls.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[CallStore]:
    with CallStore.open(path) as store:
        yield store
