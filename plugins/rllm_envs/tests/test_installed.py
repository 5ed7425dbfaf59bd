"""Packages of other projects that are not installed."""

from __future__ import annotations

import pytest

from rllm_core.errors import PluginError
from rllm_envs.installed import require


def test_missing_package_names_the_extra() -> None:
    with pytest.raises(PluginError) as raised:
        require("no_such_module", "some-extra")
    assert "no_such_module" in str(raised.value)
    assert raised.value.hint == "Run: pip install 'rllm-envs[some-extra]'"


def test_installed_package_is_accepted() -> None:
    require("pytest", "pytest")
