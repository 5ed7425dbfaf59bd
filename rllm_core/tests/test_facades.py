"""Packages whose ``__init__.pyi`` lists what may be imported of them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import rllm_core

ROOT = Path(rllm_core.__file__).parent
FACADES = ["rllm_core", *(f"rllm_core.{stub.parent.name}" for stub in ROOT.glob("*/__init__.pyi"))]


@pytest.mark.parametrize("name", FACADES)
def test_every_listed_name_is_there(name: str) -> None:
    package = import_module(name)
    assert package.__all__
    for each in package.__all__:
        assert getattr(package, each) is not None


@pytest.mark.parametrize("name", FACADES)
def test_a_name_that_is_not_listed_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        _ = import_module(name).nothing_of_that_name
