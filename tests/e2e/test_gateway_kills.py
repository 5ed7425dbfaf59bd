"""A gateway that is killed has stored every call that it answered."""

from __future__ import annotations

import asyncio
import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.long
def test_no_answer_is_lost_when_the_gateway_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    benchmark = runpy.run_path(str(BENCHMARKS / "gateway.py"))
    acknowledged, lost = asyncio.run(benchmark["kills"](5))
    assert acknowledged > 0
    assert lost == 0
