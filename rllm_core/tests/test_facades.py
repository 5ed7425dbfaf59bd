"""Packages whose ``__init__.pyi`` lists what may be imported of them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import rllm
import rllm_core
from rllm_core import lazy

ROOTS = [Path(package.__file__).parent for package in (rllm, rllm_core)]
FACADES = [
    name
    for root in ROOTS
    for name in (root.name, *(f"{root.name}.{stub.parent.name}" for stub in root.glob("*/__init__.pyi")))
]


@pytest.mark.parametrize("name", FACADES)
def test_only_listed_names_are_there(name: str) -> None:
    package = import_module(name)
    assert package.__all__
    for each in package.__all__:
        assert getattr(package, each) is not None
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        _ = package.nothing_of_that_name


def test_program_name_without_program_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "import_module", _missing)
    with pytest.raises(ImportError, match="pip install rllm"):
        _ = rllm_core.AgentTrainer


def _missing(name: str) -> object:
    raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])
