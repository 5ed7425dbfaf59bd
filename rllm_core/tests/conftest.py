"""What tests in several folders use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rllm_core.plugins import in_process


@pytest.fixture
def nothing_stays_registered() -> Iterator[None]:
    """What a test registers in this process is forgotten after it."""
    before = {(record.kind, record.name) for record in in_process.records()}
    yield
    for record in in_process.records():
        if (record.kind, record.name) not in before:
            in_process.forget(record.kind, record.name)
