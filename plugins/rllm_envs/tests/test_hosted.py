"""Without its package, an environment with its own workflow is listed, and a run names the command that installs it."""

from __future__ import annotations

import pytest
from expecting import expect_error

from rllm_core.contracts.params import Params
from rllm_core.errors import ConfigError, PluginError
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_envs.hosted import read_params
from rllm_envs.inspect.options import InspectParams
from rllm_envs.verifiers.options import VerifiersParams

FAMILIES = [("inspect", InspectParams, "task"), ("verifiers", VerifiersParams, "id")]
"""Name, options, and the option after the colon."""


@pytest.mark.parametrize(("name", "params", "option"), FAMILIES)
def test_missing_package_is_named_with_its_command(name: str, params: type[Params], option: str) -> None:
    registry = Registry.load(allow={"rllm-envs"})
    environment, workflow = (registry.get(kind, name) for kind in ("environment", "workflow"))
    for ask in (environment.load, workflow.load, lambda: environment.plugin.check(params(**{option: "any"}))):
        with expect_error(PluginError, "missing-package") as raised:
            ask()
        assert f"pip install 'rllm-envs[{name}]'" in raised.value.hint


@pytest.mark.parametrize(("name", "params", "option"), FAMILIES)
def test_other_environments_are_rejected_by_the_workflow(name: str, params: type[Params], option: str) -> None:
    with expect_error(ConfigError, "bad-workflow"):
        read_params(RunConfig(), name, params, option)
