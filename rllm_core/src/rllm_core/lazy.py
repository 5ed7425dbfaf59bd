"""Imports that wait until a name is used, so that a command imports only the code that it needs."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def load_from(module: str, name: str) -> Callable[[], Any]:
    """Return a function that imports `module` and returns `name` from it. Use it as the `load` of a plugin."""
    return lambda: getattr(import_module(module), name)


def names_in_stub(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose ``__init__.pyi`` lists its names.

    Args:
        package: the package's ``__name__``.
        file: the package's ``__file__``.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    modules = {
        alias.name: f"{package}.{node.module}" if node.level else str(node.module)
        for node in imports
        for alias in node.names
    }
    names = sorted(modules)

    def import_name(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    return import_name, lambda: names, names
