"""Makes the environments of these tests importable, here and in the processes that serve them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
sys.path.append(HERE)


@pytest.fixture(autouse=True)
def environments_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, os.environ["PYTHONPATH"]]))
    monkeypatch.chdir(tmp_path)
    yield
