"""Versions of the core that do not fit, which make a plugin unusable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from expecting import check_values, expect_error
from packaging.requirements import Requirement

from rllm.cli.plugin_commands import load_command
from rllm.config.missing_packages import missing, outside
from rllm_core import __version__
from rllm_core.contracts.plugin import API_VERSION
from rllm_core.errors import PluginError
from rllm_core.plugins.discovery import Candidate
from rllm_core.plugins.requirements import allows, is_in_bounds

NEWER, OLDER = "Requires-Dist: rllm-core<9,>=8.1\n", "Requires-Dist: rllm_core[torch]<0.0.1\n"
SAID = {
    NEWER: ("rllm-core<9,>=8.1", "pip install 'rllm-core<9,>=8.1'"),
    OLDER: ("rllm-core<0.0.1", "pip install --upgrade misfit"),
    "Requires-Dist: rllm-core==8.*\n": ("rllm-core==8.*", "pip install 'rllm-core==8.*'"),
}


@pytest.mark.parametrize("metadata", SAID)
def test_a_plugin_for_another_core_is_refused(site, metadata: str, capsys: Any, tmp_path) -> None:
    needs, remedy = SAID[metadata]
    trace = tmp_path / "imported"
    site.install("misfit", f"open({str(trace)!r}, 'w').close()", metadata=metadata)

    registry = site.load()

    assert not trace.exists(), "it may not even import with this core"
    (broken,) = registry.broken
    check_values(broken.reason, "misfit 1.0", needs, f"rllm-core {__version__}")
    assert broken.remedy == remedy
    shown = capsys.readouterr().err
    assert shown.startswith("warning: plugin misfit ")
    assert shown.endswith(f"{broken.reason}.\nhint: {remedy}\n")
    with expect_error(PluginError, "broken-plugin", broken.reason, remedy):
        registry.get("estimator", "misfit/raw")


def test_a_plugin_for_this_core_is_used(site) -> None:
    fits = f"Requires-Dist: rllm-core<={__version__}\nRequires-Dist: rllm-core-of-others>=7\nRequires-Dist: ???\n"
    site.install_estimator("fitting", "fits", metadata=fits + "Requires-Dist: rllm-core>=8; extra == 'later'\n")

    assert site.load().get("estimator", "fits").distribution == "fitting"


@pytest.mark.parametrize(
    ("stated", "remedy"),
    [(API_VERSION + 1, "pip install --upgrade rllm-core"), (API_VERSION - 1, "pip install --upgrade misfit")],
)
def test_different_plugin_interface_has_a_pip_command(site, stated: int, remedy: str) -> None:
    site.install("misfit", f"requires_api = {stated}")

    (broken,) = site.load().broken

    assert broken.remedy == remedy


def test_command_for_different_core_has_pip_command() -> None:
    def load() -> object:
        raise AssertionError("it is not imported")

    command = Candidate(
        entry_point="act", distribution="misfit", version="1.0", load=load, requires=("rllm-core<9,>=8.1",)
    )

    with pytest.raises(PluginError) as raised:
        load_command(command)

    assert "needs rllm-core<9,>=8.1" in raised.value.message
    assert raised.value.hint == "pip install 'rllm-core<9,>=8.1'"


@pytest.mark.parametrize("function", [missing, outside])
def test_package_not_installed_misses_nothing(function: Callable[[str], list[Any]]) -> None:
    assert function("not-installed-at-all") == []


@pytest.mark.parametrize("bounds", ["<0.2,>=0.1", ">=0.1, <0.10", "<0.1.0", ">=0.1.0.0", "[torch]<0.2,>=0.1.1"])
@pytest.mark.parametrize("version", ["0.1", "0.1.0", "0.2", "0.1.1", "0.10", "1.0", "0.0.9"])
def test_bounds_are_read_as_by_packaging(bounds: str, version: str) -> None:
    assert is_in_bounds(f"rllm-core{bounds}", version) == allows(Requirement(f"rllm-core{bounds}"), version)


@pytest.mark.parametrize("bounds", ["", "==0.1", "<=0.1.0", "<0.2; python_version>'3'", "-x<0.2"])
def test_other_requirements_are_left_to_packaging(bounds: str) -> None:
    assert not is_in_bounds(f"rllm-core{bounds}", "0.1.0")
    assert not is_in_bounds("rllm-core<0.2", "0.1.0rc1")
