"""What the doctor says of versions that do not fit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from expecting import check_values

from rllm.cli.plugin_commands import PluginCommands
from rllm.config.missing_packages import missing
from rllm.inspection.doctor import examine, examine_commands, examine_packages
from rllm_core.contracts.backend import Finding
from rllm_core.plugins.discovery import Candidate


def test_a_plugin_for_another_core_is_one_error(site) -> None:
    site.install_estimator("misfit", "raw", metadata="Requires-Dist: rllm-core<9,>=8.1\n")
    registry = site.load()

    found = [*examine(registry), *examine_packages(registry.discovery)]

    (finding,) = [each for each in found if each.subject.startswith("misfit")]
    assert finding.severity == "error"
    assert finding.problem.startswith("broken: misfit 1.0 needs rllm-core<9,>=8.1, and rllm-core ")
    assert finding.remedy.startswith("pip install 'rllm-core<9,>=8.1'")


def test_command_for_other_core_has_a_remedy() -> None:
    def load() -> object:
        raise AssertionError("it is not imported")

    command = Candidate(
        entry_point="act", distribution="misfit", version="1.0", load=load, requires=("rllm-core<9,>=8.1",)
    )

    (finding,) = examine_commands(PluginCommands(usable=(command,), hidden=(), blocked=()))

    assert finding.remedy == "pip install 'rllm-core<9,>=8.1'"


@pytest.fixture
def findings(site) -> Callable[..., list[Finding]]:
    """What the doctor says of a plugin with these lines of metadata."""

    def examine(metadata: str) -> list[Finding]:
        site.install_estimator("asking", "raw", metadata=metadata)
        return [each for each in examine_packages(site.load().discovery) if each.subject.startswith("asking")]

    return examine


def test_the_doctor_finds_packages_outside_the_bounds(site, findings: Callable[[str], list[Finding]]) -> None:
    site.install_package("somelib", "2.0+cpu")
    site.install_package("fine", "1.4.post1+cpu")

    (finding,) = findings("Requires-Dist: somelib<2,>=1.1\nRequires-Dist: fine<1.5,>=1.4\n")

    assert (finding.code, finding.severity) == ("wrong-version", "warning")
    check_values(finding.problem, "somelib<2,>=1.1", "2.0+cpu")
    assert finding.remedy == "pip install 'somelib<2,>=1.1'"


def test_the_doctor_finds_packages_that_are_missing(site, findings: Callable[[str], list[Finding]]) -> None:
    site.install_package("host", "1.0", "Provides-Extra: gpu\nRequires-Dist: absent-two>=2; extra == 'gpu'\n")

    found = findings("Requires-Dist: absent-one\nRequires-Dist: host[gpu]\nRequires-Dist: no; python_version < '3'\n")

    assert [finding.severity for finding in found] == ["error", "error"]
    assert [finding.remedy for finding in found] == ["pip install 'absent-one'", "pip install 'absent-two>=2'"]


@pytest.mark.parametrize("complete", [False, True])
def test_packages_of_extra_count_if_all_are_installed(
    site, findings: Callable[[str], list[Finding]], complete: bool
) -> None:
    site.install_package("somelib", "1.0")
    if complete:
        site.install_package("other", "1.0")

    found = findings(
        "Provides-Extra: more\nRequires-Dist: somelib>=1.1; extra == 'more'\nRequires-Dist: other; extra == 'more'\n"
    )

    assert [each.problem.partition(",")[0] for each in found] == ["requires somelib>=1.1"] * complete
    assert [each.name for each in missing("asking", ["more"])] == ["other"] * (not complete)
