"""A user with a cache directory of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from rllm_core.plugins import discovery


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set an empty cache directory, for this process and its children, and return the path of the file of refresh."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    discovery.read_refreshed_packages.cache_clear()
    return tmp_path / "cache" / "rllm" / "package_index.json"


@pytest.fixture(autouse=True)
def _forget_the_index() -> None:
    discovery.read_refreshed_packages.cache_clear()
