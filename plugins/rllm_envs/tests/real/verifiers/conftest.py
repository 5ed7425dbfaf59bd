"""Makes the tasksets of these tests importable, here and in the processes of tool servers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TASKSETS = str(Path(__file__).with_name("tasksets"))
sys.path.append(TASKSETS)


def pytest_configure(config: pytest.Config) -> None:
    # verifiers 0.4.0 uses an old argument of tenacity.
    config.addinivalue_line("filterwarnings", "ignore:The 'initial' parameter is deprecated:DeprecationWarning")


@pytest.fixture(autouse=True)
def tasksets_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [TASKSETS, os.environ.get("PYTHONPATH")])))
    monkeypatch.chdir(tmp_path)
    yield
