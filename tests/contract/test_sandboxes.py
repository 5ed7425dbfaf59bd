"""Every sandbox of this repository keeps the contract."""

from __future__ import annotations

import shutil

import pytest

from rllm_core.contracts.sandbox import SandboxSetup
from rllm_plugin_kit import SandboxContract


class TestLocal(SandboxContract):
    name = "rllm/local"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
class TestBwrap(SandboxContract):
    name = "rllm/bwrap"
    options = ({}, {"readable": ["/etc/ssl"]})

    def setup(self) -> SandboxSetup:
        return SandboxSetup(disk=8 << 20, memory=256 << 20, processes=32)
