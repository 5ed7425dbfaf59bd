"""The public names, their signatures and fields, as text: ``python docs/generate/public_api.py``.

A test compares the text with the one in the repository, so that nothing public changes unseen.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from importlib import import_module
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from rllm_core.plugins.specs import KINDS

MODULES = ("rllm_core", "rllm_core.contracts", "rllm_core.plugins")
HEADING = "# Made by `make docs`. A test fails when it is stale. docs/contributing/releasing.md explains changes.\n"
CALLED = ("__init__", "__call__")
"""Special methods that are listed in addition to the public names of a class."""


def text() -> str:
    """One line per name, field and method, in alphabetical order of names; then the hooks."""
    lines = [line for module in MODULES for line in _module(module)]
    lines += sorted(f"hook {kind.hook}() -> Iterable[{kind.record.__name__}]" for kind in KINDS.values())
    return HEADING + "\n".join(lines) + "\n"


def _module(name: str) -> Iterator[str]:
    module = import_module(name)
    for public in sorted(set(module.__all__)):
        if not public.startswith("_"):
            yield from _described(f"{name}.{public}", getattr(module, public))


def _described(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, type):
        yield f"{path}: class({', '.join(base.__name__ for base in value.__bases__ if base is not object)})"
        yield from (f"{path}.{line}" for line in _members(value))
    elif inspect.isroutine(value):
        yield f"{path}{_signature(value)}"
    else:
        yield f"{path}: {_constant(value)}"


def _members(owner: type) -> Iterator[str]:
    if issubclass(owner, Enum):
        yield from (f"{member.name} = {member.value!r}" for member in owner)
        return
    yield from _fields(owner)
    made = is_dataclass(owner) or issubclass(owner, BaseModel)
    for name, member in sorted(vars(owner).items()):
        if name.startswith("_") and (name not in CALLED or (made and name == "__init__")):
            continue
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if isinstance(member, property):
            assert member.fget is not None
            yield f"{name}: property{_signature(member.fget)}"
        elif inspect.isfunction(function):
            abstract = "abstract " if getattr(function, "__isabstractmethod__", False) else ""
            prefix = "async " if inspect.iscoroutinefunction(function) else ""
            yield f"{name}: {abstract}{prefix}{_signature(function)}"


def _fields(owner: type) -> Iterator[str]:
    if issubclass(owner, BaseModel):
        for name, info in owner.model_fields.items():
            default = "" if info.default is PydanticUndefined else f" = {_value(info.default)}"
            yield f"{name}: {_annotation(owner, name)}{default}"
    elif is_dataclass(owner):
        for field in fields(owner):
            by_position = "" if field.kw_only else ", also by position"
            yield f"{field.name}: {field.type}{_default(field)}{by_position}"
    else:
        annotations = inspect.get_annotations(owner).items()
        yield from (f"{name}: {annotation}" for name, annotation in annotations if not name.startswith("_"))


def _annotation(owner: type[BaseModel], name: str) -> str:
    """The type as in the source, without the marks of a key."""
    declared = next(
        base.__annotations__[name] for base in owner.__mro__ if name in vars(base).get("__annotations__", {})
    )
    node = ast.parse(declared, mode="eval").body
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Annotated" and isinstance(node.slice, ast.Tuple):
        return ast.unparse(node.slice.elts[0])
    return str(declared)


def _default(field: Field[Any]) -> str:
    if field.default is not MISSING:
        return f" = {_value(field.default)}"
    return "" if field.default_factory is MISSING else f" = {getattr(field.default_factory, '__name__', '…')}()"


def _signature(function: Any) -> str:
    """Annotations stand as in the source: they are strings, and would be quoted otherwise."""
    signature = inspect.signature(function)
    parameters = []
    for each in signature.parameters.values():
        annotated = each if each.annotation is each.empty else each.replace(annotation=_Shown(each.annotation))
        has_none = each.default is each.empty
        parameters.append(annotated if has_none else annotated.replace(default=_Shown(_value(each.default))))
    returns = signature.return_annotation
    shown = returns if returns is signature.empty else _Shown(returns)
    return str(signature.replace(parameters=parameters, return_annotation=shown))


class _Shown:
    """Text that a signature shows as it is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _value(value: object) -> str:
    """As in the source where that can be known."""
    if isinstance(value, type) or inspect.isroutine(value):
        return value.__name__
    if isinstance(value, frozenset | set):
        return f"{{{', '.join(sorted(map(repr, value)))}}}"
    shown = repr(value)
    return f"<{type(value).__name__}>" if " at 0x" in shown else shown


def _constant(value: object) -> str:
    """Return the value of a constant or an alias. For an object, return its type."""
    plain = isinstance(value, str | int | float | tuple | frozenset) or hasattr(value, "__origin__")
    return _value(value) if plain else type(value).__name__


if __name__ == "__main__":
    sys.stdout.write(text())
