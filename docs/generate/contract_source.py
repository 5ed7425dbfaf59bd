"""What the source of a module says of its classes: docstrings, and the strings below fields."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field, a class attribute or a constant."""

    name: str
    type: str
    default: str
    """As in the source; empty where there is none."""
    doc: str


@dataclass(frozen=True, kw_only=True)
class Method:
    """A public method or function."""

    signature: str
    """``async close(self) -> None`` without ``self``."""
    doc: str


@dataclass(frozen=True, kw_only=True)
class Described:
    """A public class."""

    name: str
    bases: tuple[str, ...]
    doc: str
    fields: tuple[Field, ...]
    methods: tuple[Method, ...]


def classes_of(module: ModuleType) -> dict[str, Described]:
    """Public classes by name, in the order of the source."""
    tree = _tree(module)
    return {node.name: _described(node) for node in tree.body if isinstance(node, ast.ClassDef) and _public(node.name)}


def others_of(module: ModuleType) -> tuple[tuple[Field, ...], tuple[Method, ...]]:
    """Public constants that have a docstring, and public functions."""
    tree = _tree(module)
    return tuple(field for field in _fields(tree.body) if field.doc), tuple(_methods(tree.body))


def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _described(node: ast.ClassDef) -> Described:
    return Described(
        name=node.name,
        bases=tuple(ast.unparse(base) for base in node.bases),
        doc=ast.get_docstring(node) or "",
        fields=tuple(_fields(node.body)),
        methods=tuple(_methods(node.body)),
    )


def _fields(body: list[ast.stmt]) -> Iterator[Field]:
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign):
            target, annotation = statement.target, ast.unparse(statement.annotation)
        elif isinstance(statement, ast.Assign):
            target, annotation = statement.targets[0], ""
        else:
            continue
        if isinstance(target, ast.Name) and _public(target.id):
            default = ast.unparse(statement.value) if statement.value is not None else ""
            yield Field(name=target.id, type=annotation, default=default, doc=_string(following))


def _methods(body: list[ast.stmt]) -> Iterator[Method]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (_public(node.name) or node.name == "__call__"):
            yield Method(signature=_signature(node), doc=ast.get_docstring(node) or "")


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    if "property" in decorators:
        return node.name + returns.replace(" -> ", ": ")
    arguments = ast.unparse(node.args).removeprefix("self, ").removeprefix("self").removeprefix("cls, ")
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    prefix += "classmethod " if "classmethod" in decorators else ""
    return f"{prefix}{node.name}({arguments}){returns}"


def _string(statement: ast.stmt | None) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return inspect.cleandoc(str(statement.value.value))
    return ""


def _public(name: str) -> bool:
    return not name.startswith("_")
