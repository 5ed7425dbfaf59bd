"""Versions that do not fit: of the core, which makes a plugin unusable; of other packages, which the doctor finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rllm_core import __version__
from rllm_core.contracts.finding import Finding
from rllm_core.contracts.plugin import API_VERSION
from rllm_core.errors import PluginError
from rllm_core.plugins.command_doctor import examine_commands
from rllm_core.plugins.commands import PluginCommands, load_command
from rllm_core.plugins.discovery import Candidate
from rllm_core.plugins.doctor import examine
from rllm_core.plugins.package_doctor import examine_packages
from rllm_core.plugins.requirements import missing, outside

NEWER, OLDER = "Requires-Dist: rllm-core<9,>=8.1\n", "Requires-Dist: rllm_core[torch]<0.0.1\n"
SAID = {
    NEWER: ("needs rllm-core<9,>=8.1", "pip install 'rllm-core<9,>=8.1'"),
    OLDER: ("needs rllm-core<0.0.1", "pip install --upgrade misfit"),
    "Requires-Dist: rllm-core==8.*\n": ("needs rllm-core==8.*", "pip install 'rllm-core==8.*'"),
}


def _about(findings: list[Finding], subject: str) -> list[Finding]:
    return [finding for finding in findings if finding.subject.startswith(subject)]


@pytest.mark.parametrize("metadata", SAID)
def test_a_plugin_for_another_core_is_refused_by_name_with_what_to_run(
    site, metadata: str, capsys: pytest.CaptureFixture[str], tmp_path
) -> None:
    needs, remedy = SAID[metadata]
    trace = tmp_path / "imported"
    site.install("misfit", f"open({str(trace)!r}, 'w').close()", metadata=metadata)

    registry = site.load()

    reason = f"misfit 1.0 {needs}, and rllm-core {__version__} is installed"
    assert not trace.exists(), "it may not even import with this core"
    assert capsys.readouterr().err == f"warning: plugin misfit is broken: {reason}. {remedy}\n"
    (finding,) = _about([*examine(registry), *examine_packages(registry.discovery)], "misfit")
    assert (finding.severity, finding.problem) == ("error", f"broken: {reason}")
    assert finding.remedy.startswith(remedy)
    with pytest.raises(PluginError) as raised:
        registry.get("estimator", "misfit/raw")
    assert reason in raised.value.message
    assert raised.value.hint == remedy


def test_a_plugin_for_this_core_is_used(site) -> None:
    fits = f"Requires-Dist: rllm-core<={__version__}\nRequires-Dist: rllm-core-of-others>=7\nRequires-Dist: ???\n"
    site.install_estimator("fitting", "fits", metadata=fits + "Requires-Dist: rllm-core>=8; extra == 'later'\n")

    assert site.load().get("estimator", "fits").distribution == "fitting"


@pytest.mark.parametrize(
    ("stated", "remedy"),
    [(API_VERSION + 1, "pip install --upgrade rllm-core"), (API_VERSION - 1, "pip install --upgrade misfit")],
)
def test_another_plugin_interface_is_refused_with_what_to_run(site, stated: int, remedy: str) -> None:
    site.install("misfit", f"requires_api = {stated}")

    (broken,) = site.load().broken

    assert broken.remedy == remedy


def test_a_command_for_another_core_is_refused_with_what_to_run() -> None:
    def load() -> object:
        raise AssertionError("it is not imported")

    command = Candidate(
        entry_point="act", distribution="misfit", version="1.0", load=load, requires=("rllm-core<9,>=8.1",)
    )

    with pytest.raises(PluginError) as raised:
        load_command(command)
    (finding,) = examine_commands(PluginCommands(usable=(command,), hidden=(), blocked=()))

    assert "needs rllm-core<9,>=8.1" in raised.value.message
    assert raised.value.hint == finding.remedy == "pip install 'rllm-core<9,>=8.1'"


@pytest.fixture
def findings(site) -> Callable[..., list[Finding]]:
    """What the doctor says of a plugin with these lines of metadata."""

    def of(metadata: str) -> list[Finding]:
        site.install_estimator("asking", "raw", metadata=metadata)
        return _about([*examine_packages(site.load().discovery)], "asking")

    return of


def test_the_doctor_finds_packages_outside_the_bounds(site, findings: Callable[[str], list[Finding]]) -> None:
    site.install_package("somelib", "2.0+cpu")
    site.install_package("fine", "1.4.post1+cpu")

    (finding,) = findings("Requires-Dist: somelib<2,>=1.1\nRequires-Dist: fine<1.5,>=1.4\n")

    assert finding.severity == "warning"
    assert finding.problem == "asks for somelib<2,>=1.1, and 2.0+cpu is installed, which is not tested"
    assert finding.remedy == "pip install 'somelib<2,>=1.1'"


def test_the_doctor_finds_packages_that_are_missing(site, findings: Callable[[str], list[Finding]]) -> None:
    site.install_package("host", "1.0", "Provides-Extra: gpu\nRequires-Dist: absent-two>=2; extra == 'gpu'\n")

    found = findings("Requires-Dist: absent-one\nRequires-Dist: host[gpu]\nRequires-Dist: no; python_version < '3'\n")

    assert [finding.severity for finding in found] == ["error", "error"]
    assert [finding.remedy for finding in found] == ["pip install 'absent-one'", "pip install 'absent-two>=2'"]


@pytest.mark.parametrize("complete", [False, True])
def test_packages_of_an_extra_count_once_all_of_them_are_there(
    site, findings: Callable[[str], list[Finding]], complete: bool
) -> None:
    site.install_package("somelib", "1.0")
    if complete:
        site.install_package("other", "1.0")

    found = findings(
        "Provides-Extra: more\nRequires-Dist: somelib>=1.1; extra == 'more'\nRequires-Dist: other; extra == 'more'\n"
    )

    assert [each.problem.partition(",")[0] for each in found] == ["asks for somelib>=1.1"] * complete
    assert [each.name for each in missing("asking", ["more"])] == ["other"] * (not complete)


@pytest.mark.parametrize("function", [missing, outside])
def test_a_distribution_that_is_not_installed_asks_for_nothing(function: Callable[[str], list[Any]]) -> None:
    assert function("not-installed-at-all") == []
