"""Without its package, `inspect` is listed, and a run with it names the command that installs it."""

from __future__ import annotations

import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError, PluginError
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig

PIP = "pip install 'rllm-envs[inspect]'"


@pytest.fixture
def registry() -> Registry:
    return Registry.load(allow={"rllm-envs"})


@pytest.mark.parametrize("kind", ["environment", "workflow"])
def test_missing_package_is_named_with_its_command(registry: Registry, kind: str) -> None:
    with expect_error(PluginError, "missing-package") as raised:
        registry.get(kind, "inspect").load()
    assert PIP in raised.value.hint


def test_check_of_the_options_names_the_command(registry: Registry) -> None:
    plugin = registry.get("environment", "inspect").plugin
    with expect_error(PluginError, "missing-package") as raised:
        plugin.check(plugin.params(task="sums.py"))
    assert PIP in raised.value.hint


def test_other_environments_are_rejected_by_the_workflow() -> None:
    from rllm_envs.hosted import read_params
    from rllm_envs.inspect.options import InspectParams

    with expect_error(ConfigError, "bad-workflow"):
        read_params(RunConfig(), "inspect", InspectParams, "task")
