"""Silences what inspect prints, and runs each test in its own directory."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from inspect_ai.util._display import init_display_type


def pytest_configure(config: pytest.Config) -> None:
    # inspect uses an old argument of tenacity.
    config.addinivalue_line("filterwarnings", "ignore:The 'initial' parameter is deprecated:DeprecationWarning")
    # inspect forgets the streams of its samples.
    config.addinivalue_line("filterwarnings", "ignore:Unclosed <MemoryObject:ResourceWarning")
    # pytest looks for more of them after it has dropped the filters of tests.
    warnings.filterwarnings("ignore", "Unclosed <MemoryObject", ResourceWarning)


@pytest.fixture(autouse=True)
def quiet_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    init_display_type("none")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    yield
