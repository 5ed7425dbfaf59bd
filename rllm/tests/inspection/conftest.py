"""Plugins that only tests install."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from plugin_site import Site, installed_in

from rllm_core.notices import forget_warnings


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with installed_in(tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture(autouse=True)
def _every_warning_is_new() -> None:
    forget_warnings()
