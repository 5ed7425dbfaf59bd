"""A kind has the same name everywhere: contract, hook, contract test, template and page."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import rllm_plugin_kit
from rllm_core.plugins import specs
from rllm_core.plugins.specs import KINDS
from rllm_plugin_kit.scaffold.kinds import TEMPLATES

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_all_five(kind: str) -> None:
    record = KINDS[kind].record
    assert record.__module__ == f"rllm_core.contracts.{kind}"
    assert hasattr(specs.HOOKSPECS, KINDS[kind].hook)
    assert getattr(rllm_plugin_kit, f"{kind.capitalize()}Contract").kind == kind
    assert import_module(f"rllm_plugin_kit.{kind}")
    assert kind in TEMPLATES
    assert (REFERENCE / f"{kind}.md").is_file()


def test_every_contract_test_is_one_of_a_kind() -> None:
    contracts = {name for name in rllm_plugin_kit.__all__ if name.endswith("Contract")}
    assert contracts == {f"{kind.capitalize()}Contract" for kind in KINDS}
