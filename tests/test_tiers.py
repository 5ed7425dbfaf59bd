"""Every test belongs to one tier: `make test`, the smoke tests of `make ci`, `make release`, nightly, or GPUs."""

from __future__ import annotations

from workspace import ROOT

NOT_COLLECTED = ("real", "wheels", "clients")
"""Directories of tests that have their own environments."""


def test_no_test_belongs_to_two_tiers(tests_of_several_tiers: list[str]) -> None:
    assert tests_of_several_tiers == []


def test_each_directory_with_its_own_environment_has_a_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = {
        path.relative_to(ROOT).as_posix()
        for name in NOT_COLLECTED
        for pattern in ("tests", "*/tests", "plugins/*/tests")
        for path in ROOT.glob(f"{pattern}/{name}")
    }

    assert found and {path for path in found if path not in makefile} == set()
