from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_world import World, running


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with running(tmp_path) as world:
        yield world
