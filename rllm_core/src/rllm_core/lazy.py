"""Imports that wait until a name is used, so that a command imports only the code that it needs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any


def load_from(module: str, name: str) -> Callable[[], Any]:
    """Return a function that imports `module` and returns `name` from it. Use it as the `load` of a plugin."""
    return lambda: getattr(import_module(module), name)


def call_lazily(module: str, name: str) -> Callable[..., Any]:
    """Return a function that imports `module` and calls its function `name`. Use it for the checks of a plugin."""
    return lambda *arguments: getattr(import_module(module), name)(*arguments)


def import_single_module(module: str) -> ModuleType:
    """Import a module. If its packages cannot be imported, import it without their ``__init__``.

    So you can use a function of a library without the requirements of the library's other modules.

    Raises:
        ImportError: the module does not exist, or it needs a module that cannot be imported.
    """
    try:
        return import_module(module)
    except ImportError:
        from importlib.util import find_spec, module_from_spec

        added = []
        try:
            # They stay, because functions of the module may import their neighbours when they are called.
            for package in accumulate(module.split(".")[:-1], "{}.{}".format):
                if package not in sys.modules:
                    if (spec := find_spec(package)) is None:
                        raise
                    sys.modules[package] = module_from_spec(spec)
                    added.append(package)
            return import_module(module)
        except ImportError:
            for package in added:
                del sys.modules[package]
            raise


def names_in_stub(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose ``__init__.pyi`` lists its names.

    The stub is read when the first name is imported, because commands of ``rllm`` import the package and no name of it.

    Args:
        package: the package's ``__name__``.
        file: the package's ``__file__``.
    """

    @cache
    def modules() -> dict[str, str]:
        import ast

        stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
        return {
            alias.name: f"{package}.{node.module}" if node.level else str(node.module)
            for node in stub.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    def import_name(name: str) -> Any:
        if name == "__all__":
            return sorted(modules())
        if name.startswith("__") or name not in modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules()[name]), name)

    return import_name, lambda: sorted(modules())
