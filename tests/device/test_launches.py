"""The kernels, waits and transfers of sampling and updates, next to plain torch and transformers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pretend_device
import pytest

ROWS = 16


@pytest.fixture(scope="module")
def launches() -> Any:
    """The benchmark, which prints the same numbers for a larger model."""
    spec = importlib.util.spec_from_file_location("launches", Path(__file__).parents[2] / "benchmarks/launches.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def model(launches: Any) -> Any:
    return launches.build_model(2, pretend_device.register(), vocabulary=500)


def test_decode_pass_launches_few_kernels_and_waits_once(launches: Any, model: Any) -> None:
    _, without_graph, _, replay = launches.decode_passes(model, ROWS, 4)
    assert without_graph.launches <= 1.1 * launches.bare_decode_pass(model, ROWS).launches
    assert replay.kernels["replay of a graph"] == 1
    assert replay.launches <= 16
    for decode in (without_graph, replay):
        assert decode.waits.total() == 1
        assert decode.bytes_to_device <= 64 * ROWS
        assert decode.bytes_to_host <= 32 * ROWS


def test_update_waits_once_per_optimizer_step(launches: Any, model: Any) -> None:
    update, step = launches.update(model, ROWS)
    assert update.kernels["aten._fused_adamw_.default"] == 1
    assert update.waits.total() == 1
    assert step.launches <= 1.2 * launches.bare_update(model, ROWS)[1].launches
