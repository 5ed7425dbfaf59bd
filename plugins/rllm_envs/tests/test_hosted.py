"""Without its package, an environment with its own workflow is listed, and a run names the command that installs it."""

from __future__ import annotations

import pytest
from expecting import expect_error

from rllm_core.contracts.plugin import Params
from rllm_core.errors import ConfigError, PluginError
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_envs.hosted import read_params
from rllm_envs.inspect.options import InspectParams
from rllm_envs.verifiers.options import VerifiersParams

FAMILIES = [("inspect", InspectParams, "task"), ("verifiers", VerifiersParams, "id")]
"""Name, options, and the option after the colon."""


@pytest.fixture
def registry() -> Registry:
    return Registry.load(allow={"rllm-envs"})


@pytest.mark.parametrize("kind", ["environment", "workflow"])
@pytest.mark.parametrize("name", ["inspect", "verifiers"])
def test_missing_package_is_named_with_its_command(registry: Registry, kind: str, name: str) -> None:
    with expect_error(PluginError, "missing-package") as raised:
        registry.get(kind, name).load()
    assert f"pip install 'rllm-envs[{name}]'" in raised.value.hint


@pytest.mark.parametrize(("name", "params", "option"), FAMILIES)
def test_check_of_the_options_names_the_command(
    registry: Registry, name: str, params: type[Params], option: str
) -> None:
    plugin = registry.get("environment", name).plugin
    with expect_error(PluginError, "missing-package") as raised:
        plugin.check(params(**{option: "any"}))
    assert f"pip install 'rllm-envs[{name}]'" in raised.value.hint


@pytest.mark.parametrize(("name", "params", "option"), FAMILIES)
def test_other_environments_are_rejected_by_the_workflow(name: str, params: type[Params], option: str) -> None:
    with expect_error(ConfigError, "bad-workflow"):
        read_params(RunConfig(), name, params, option)
