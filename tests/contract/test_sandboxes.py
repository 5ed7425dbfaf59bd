"""Every sandbox of this repository keeps the contract."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_container import write_fake_program
from programs import needs_program

from rllm_core.contracts.sandbox import SandboxSetup
from rllm_plugin_kit import SandboxContract


class TestLocal(SandboxContract):
    name = "rllm/local"


@needs_program("bwrap")
class TestBwrap(SandboxContract):
    name = "rllm/bwrap"
    options = ({}, {"readable": ["/etc/ssl"]})

    def setup(self) -> SandboxSetup:
        return SandboxSetup(disk=8 << 20, memory=256 << 20, processes=32)


@needs_program("bwrap")
class TestDocker(SandboxContract):
    """Containers of a program that imitates docker. Real containers are not tested."""

    name = "rllm/docker"

    @pytest.fixture(autouse=True)
    def _fake_docker(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_fake_program(tmp_path, "docker")
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
