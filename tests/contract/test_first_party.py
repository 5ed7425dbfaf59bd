"""The table that says which distribution to install has every name that the distributions offer, and no other."""

from __future__ import annotations

import pytest

from rllm_core.plugins.first_party import first_party_distributions, home_of, names_elsewhere
from rllm_core.plugins.registry import Registry
from rllm_core.plugins.specs import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_agrees_with_the_records(kind: str) -> None:
    ours = first_party_distributions()
    offered = {entry.name: entry.distribution for entry in Registry.load().all(kind) if entry.distribution in ours}

    assert {name: home_of(kind, name) for name in names_elsewhere(kind)} == offered
