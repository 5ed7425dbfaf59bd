"""Contents of every distribution of this repository: metadata, bounds, license, types, and an example."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from workspace import ROOT, brought_by, distributions

ALL = {each.name: each for each in distributions()}
PLUGIN_GROUPS = {"rllm.plugins", "rllm.commands", "rllm.commands.plugins", "rllm.formats"}
NEEDS_ITS_OWN_ENVIRONMENT = {"rllm-vllm"}
"""Distributions that are not in `rllm[all]`."""

COLLECTIONS = {"rllm": {"all"}, "rllm-core": {"testing"}}
"""Extras for users that bring packages which require this package. No package requires such an extra."""

REQUIRED_BY_CORE = {"numpy", "packaging", "pluggy", "pydantic"}


def test_core_requires_only_four_packages() -> None:
    assert {Requirement(text).name for text in ALL["rllm-core"].project["dependencies"]} == REQUIRED_BY_CORE


def test_the_directory_is_named_like_the_distribution() -> None:
    for distribution in ALL.values():
        assert distribution.directory.name == distribution.file_name


def test_it_has_the_license() -> None:
    for distribution in ALL.values():
        license_file = distribution.directory / "LICENSE"
        assert license_file.is_file(), f"cp LICENSE {license_file.relative_to(ROOT)}"
        assert license_file.read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_distribution_has_license_authors_and_description() -> None:
    for distribution in ALL.values():
        project = distribution.project
        assert project["license"] == "Apache-2.0"
        assert project["authors"] == [{"name": "The rllm authors"}]
        assert project["readme"] == "README.md"
        assert project["description"].endswith(".")
        assert {"language-models", "reinforcement-learning"} <= set(project["keywords"])


def test_its_classifiers_are_those_of_all() -> None:
    for distribution in ALL.values():
        assert distribution.project["classifiers"] == ALL["rllm-core"].project["classifiers"]
        assert distribution.project["requires-python"] == ALL["rllm-core"].project["requires-python"]


def test_the_keyword_rllm_plugin_finds_plugins_and_commands() -> None:
    for distribution in ALL.values():
        groups = set(distribution.project.get("entry-points", ())) if distribution.name != "rllm-core" else set()
        assert ("rllm-plugin" in distribution.project["keywords"]) == bool(PLUGIN_GROUPS & groups)


def test_entry_points_name_package_and_feature() -> None:
    for distribution in ALL.values():
        for name, module in distribution.project.get("entry-points", {}).get("rllm.plugins", {}).items():
            assert name in (distribution.name, f"{distribution.name}-{module.split('.')[-2].replace('_', '-')}")


def test_its_types_are_for_others() -> None:
    for distribution in ALL.values():
        assert len(distribution.packages) == 1
        assert [package.name for package in distribution.packages if not (package / "py.typed").is_file()] == []


def test_its_version_is_written_once() -> None:
    for distribution in ALL.values():
        assert str(Version(distribution.version)) == distribution.version
        written = [
            str(file.relative_to(ROOT))
            for file in distribution.directory.glob("src/**/*.py")
            if re.search(r"^__version__ = ", file.read_text(encoding="utf-8"), re.MULTILINE)
        ]
        assert len(written) == ("version" in distribution.project.get("dynamic", ()))


def test_distribution_requires_matching_minor_release_of_ours() -> None:
    for distribution in ALL.values():
        ours = [
            requirement
            for requirement in distribution.requirements(*distribution.extras)
            if canonicalize_name(requirement.name) in ALL
        ]
        for requirement in ours:
            if requirement.name == distribution.name:  # (its own extras: `rllm[all]`)
                continue
            version = Version(ALL[canonicalize_name(requirement.name)].version)
            assert (
                str(requirement.specifier) == f"<{version.major}.{version.minor + 1},>={version.major}.{version.minor}"
            )


def test_requirements_and_extras_have_no_circle() -> None:
    graph = {}
    for name, distribution in ALL.items():
        extras = set(distribution.extras) - COLLECTIONS.get(name, set())
        required = {canonicalize_name(requirement.name) for requirement in distribution.requirements(*extras)}
        graph[name] = required & ALL.keys() - {name}
    TopologicalSorter(graph).prepare()  # raises CycleError, with the circle


def test_no_package_requires_extras_for_users() -> None:
    for distribution in ALL.values():
        for requirement in distribution.requirements(*distribution.extras):
            assert not requirement.extras & COLLECTIONS.get(canonicalize_name(requirement.name), set())


def test_the_extras_that_it_asks_for_are_there() -> None:
    for distribution in ALL.values():
        for requirement in distribution.requirements(*distribution.extras):
            if (other := ALL.get(canonicalize_name(requirement.name))) is not None:
                assert requirement.extras <= set(other.extras), str(requirement)


def test_its_page_begins_with_an_example() -> None:
    for distribution in ALL.values():
        assert distribution.readme.startswith(f"# {distribution.name}\n")
        install, commands = distribution.example
        assert install, "the first line of the first block installs it"
        assert commands, "the next lines use it"
        asked_for = [Requirement(word) for word in install]
        brought = set().union(*(brought_by(each.name, each.extras) for each in asked_for))
        assert distribution.name in brought, f"`pip install {' '.join(install)}` does not bring {distribution.name}"


def test_extra_all_has_all_compatible_plugins() -> None:
    left_out = set(ALL) - brought_by("rllm", {"all"})
    assert left_out == NEEDS_ITS_OWN_ENVIRONMENT


def test_rllm_brings_all_that_a_first_run_needs() -> None:
    assert brought_by("rllm") >= {"rllm-core", "rllm-estimators", "rllm-local", "rllm-record", "rllm-view"}
    assert brought_by("rllm-estimators") & {*ALL} == {"rllm-core", "rllm-estimators"}, "no packages require each other"
    trackers = {"mlflow", "tensorboard", "trackio", "wandb"}
    assert set(ALL["rllm"].extras) == {"all", "data", "math", "store", "tinker", "verl", "vllm", *trackers}


def test_distribution_lists_no_urls() -> None:
    for distribution in ALL.values():
        assert "urls" not in distribution.project, "there is no public repository; see docs/contributing/releasing.md"
