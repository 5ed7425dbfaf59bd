"""Packages of other projects that are not installed."""

from __future__ import annotations

import pytest

from rllm_core.errors import PluginError
from rllm_envs.installed import require


def test_missing_package_names_the_extra() -> None:
    with pytest.raises(PluginError) as raised:
        require("no_such_package", "no-such-package")
    assert raised.value.hint == "Run: pip install 'rllm-envs[no-such-package]'"


def test_installed_package_is_accepted() -> None:
    require("pytest", "pytest")
