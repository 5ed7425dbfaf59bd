"""Asynchronous training on the backend `local`, in an environment that waits at random."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import waiting_runs
from forked import CommandServer

from rllm_core.errors import RllmError
from rllm_local import engine as engine_module

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def made(command_server: CommandServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the result of each run of `waiting_runs`."""
    environ = os.environ | {"RLLM_BLOCK_PLUGINS": "rllm-view", "PYTHONPATH": str(Path(waiting_runs.__file__).parent)}
    process = command_server.start("waiting_runs", [], tmp_path_factory.mktemp("runs"), environ)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    read: dict[str, Any] = json.loads(output)
    return read


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="sums in one order need MKL")
def test_slots_processes_and_resumes_change_no_weights(made: dict[str, Any]) -> None:
    """The second run has fewer slots than rollouts, and trains in the process that samples."""
    assert made["second"]["digest"] == made["resumed"]["digest"] == made["first"]["digest"]
    assert made["synchronous 2"]["digest"] == made["synchronous 64"]["digest"]
    assert made["stopped"]["digest"] != made["first"]["digest"], "updates change the weights"


def test_fixed_version_tokens_have_the_largest_age(made: dict[str, Any]) -> None:
    assert made["first"]["stale"] == [0, 1, 2, 2, 2, 2]
    assert made["resumed"]["stale"] == [2, 2, 2, 2]
    assert not made["first"]["mixed"]


def test_no_token_of_latest_weights_exceeds_the_bound(made: dict[str, Any]) -> None:
    assert max(made["latest"]["stale"]) <= waiting_runs.STALENESS
    assert len(made["latest"]["stale"]) == waiting_runs.STEPS


def test_failing_engine_stops_the_run_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = itertools.count()
    sample_next = engine_module.sample_next

    def failing(*arguments: Any) -> Any:
        if next(passes) > 20:
            raise RuntimeError("device lost")
        return sample_next(*arguments)

    monkeypatch.setattr(engine_module, "sample_next", failing)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RllmError, match="device lost"):
        waiting_runs.run(
            waiting_runs.registry(), "one", waiting_runs.ONE_PROCESS, steps=waiting_runs.STEPS, resume=False
        )
