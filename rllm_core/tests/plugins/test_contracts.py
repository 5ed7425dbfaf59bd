"""`rllm_core.contracts` is one import for authors."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from rllm_core import contracts

FILES = sorted(file for file in Path(contracts.__path__[0]).glob("*.py") if file.stem != "__init__")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_public_name_of_a_contract_is_one_of_the_package(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}

    public = {name for name in defined if not name.startswith("_")}

    assert {
        name for name in public if getattr(contracts, name).__module__ == f"rllm_core.contracts.{file.stem}"
    } == public
    assert public <= set(dir(contracts))


def test_other_names_are_none_of_it() -> None:
    with pytest.raises(AttributeError, match=r"'rllm_core\.contracts' has no attribute 'Estimatr'"):
        contracts.Estimatr  # noqa: B018
