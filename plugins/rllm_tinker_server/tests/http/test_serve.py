"""Starting the server inside a program."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rllm_tinker_server.limits import TinkerLimits
from rllm_tinker_server.messages import BaseModelInfo
from rllm_tinker_server.serve import TinkerServeOptions, listen_for, serve
from rllm_tinker_server.service import Service

from .conftest import FakeHost, FakeSamplers


def test_a_server_that_cannot_start_is_not_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode() -> None:
        raise ZeroDivisionError("by nothing")

    announced: list[str] = []
    options = TinkerServeOptions(announce=tmp_path / "server.json")
    with ThreadPoolExecutor(max_workers=1) as executor:
        host = FakeHost(
            BaseModelInfo(name="fake", tokenizer="fake", max_context=64, vocabulary=100, layers=1, dtype="float32")
        )
        samplers = FakeSamplers(host, executor)
        service = Service(host, samplers, executor, tmp_path, names=("fake",), limits=TinkerLimits())
        monkeypatch.setattr(service, "run_maintenance", explode)
        with pytest.raises(SystemExit):
            serve(service, options, listen_for(options), announced.append)
    assert announced == []
    assert not (tmp_path / "server.json").exists()
