"""Checks of a plan's plugins before a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rllm.planning.plugin_checks import columns_are_trained


def _plan(*, writes: set[str], trained: bool) -> Any:
    stage = SimpleNamespace(plugin=SimpleNamespace(name="echo", writes=frozenset(writes)))
    capabilities = SimpleNamespace(observations=trained, targets=trained)
    backend = SimpleNamespace(name="mine", plugin=SimpleNamespace(capabilities=capabilities))
    return SimpleNamespace(stages=[stage], backend=backend)


@pytest.mark.parametrize(
    ("writes", "trained", "codes"),
    [
        ({"batch.observation_weights"}, False, ["backend-without-observations"]),
        ({"batch.observation_weights"}, True, []),
        ({"batch.targets"}, False, ["backend-without-targets"]),
        ({"batch.targets"}, True, []),
        ({"batch.advantages"}, False, []),
    ],
    ids=str,
)
def test_written_columns_need_backend_that_trains_on_them(writes: set[str], trained: bool, codes: list[str]) -> None:
    assert [problem.code for problem in columns_are_trained(_plan(writes=writes, trained=trained))] == codes
