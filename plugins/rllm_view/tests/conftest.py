"""A run of three steps, read through what the pages ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .asking import Asking
from .made_runs import make_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs" / "project" / "made")


@pytest.fixture
def ask(run: Path) -> Iterator[Asking]:
    asking = Asking(run)
    yield asking
    asking.library.close()
