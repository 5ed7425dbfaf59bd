"""Every test belongs to one tier: `make test`, the smoke tests of `make ci`, `make release`, nightly, or GPUs."""

from __future__ import annotations

import pytest
from reached_tests import Sources, is_test
from run_stages import PARTS
from workspace import ROOT

NOT_COLLECTED = ("real", "wheels", "clients")
"""Directories of tests that have their own environments."""
BY_HAND = {"constraints-site.txt", "constraints-vllm.txt", "constraints-verl-vllm.txt"}
"""Versions of the site, which CI always builds, and of tests that no stage runs."""


def test_no_test_belongs_to_two_tiers(tests_of_several_tiers: list[str]) -> None:
    assert tests_of_several_tiers == []


def test_directory_with_own_environment_has_a_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = {
        path.relative_to(ROOT).as_posix()
        for name in NOT_COLLECTED
        for pattern in ("tests", "*/tests", "plugins/*/tests")
        for path in ROOT.glob(f"{pattern}/{name}")
    }

    assert found and {path for path in found if path not in makefile} == set()


def test_the_files_of_each_part_exist() -> None:
    missing = [
        place
        for places in PARTS.values()
        for place in (each.removeprefix("/") for each in places)
        if not (ROOT / place).exists() and not any(ROOT.glob(f"{place}*")) and not any(ROOT.glob(f"*/{place}"))
    ]

    assert missing == []


def test_versions_of_each_environment_belong_to_a_part() -> None:
    files = {path.name for path in ROOT.glob("constraints-*.txt")} - BY_HAND

    assert files <= {place for places in PARTS.values() for place in places}


@pytest.mark.smoke
def test_a_change_reaches_the_tests_that_import_it() -> None:
    sources = Sources()

    reached = sources.reached(["plugins/rllm_estimators/src/rllm_estimators/centred.py"])
    assert reached[0].startswith("plugins/rllm_estimators/tests/")
    assert not any(file.startswith("plugins/rllm_gateway/") for file in reached)
    assert "tests/test_links_of_the_documents.py" in sources.reached(["docs/tutorial.md"])
    # A script that tests start by its path.
    assert "tests/e2e/test_resume.py" in sources.reached(["tests/tools/command_server.py"])
    assert {*sources.reached(["constraints.txt"])} == {file for file in sources.python if is_test(file)}
