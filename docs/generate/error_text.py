"""Texts that expressions of the source may have, with names for what is filled in."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

MOST = 4
"""Texts of one expression."""
UNKNOWN = "‹…›"
VALUE = "`‹key›` is ‹value› (from ‹origin›)"
SAYS = {"given": VALUE}
"""What a method says that is no single text."""
_TEXTS = (ast.Constant, ast.JoinedStr, ast.IfExp, ast.BinOp, ast.BoolOp, ast.Name)


@dataclass
class Scope:
    """What the names mean that an expression uses, and the class it is in."""

    assigned: dict[str, list[ast.expr]] = field(default_factory=dict)
    owner: str = ""

    @classmethod
    def of(cls, node: ast.AST, outer: Scope | None = None) -> Scope:
        """The names that a module or a function gives values to."""
        assigned = dict(outer.assigned) if outer else {}
        own: dict[str, list[ast.expr]] = {}
        for statement in _own_statements(node):
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                own.setdefault(statement.targets[0].id, []).append(statement.value)
        arguments = getattr(node, "args", None)
        parameters = [each.arg for each in (*arguments.args, *arguments.kwonlyargs)] if arguments else []
        return cls({**{k: v for k, v in assigned.items() if k not in parameters}, **own}, outer.owner if outer else "")

    def with_names(self, names: dict[str, list[ast.expr]]) -> Scope:
        """The same with more names."""
        return Scope({**self.assigned, **names}, self.owner)

    def within(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Scope:
        """The scope inside a function or class."""
        if isinstance(node, ast.ClassDef):
            return Scope(self.assigned, node.name)
        return Scope.of(node, self)


def _own_statements(node: ast.AST) -> list[ast.stmt]:
    """Statements of a body and of its branches, without those of functions and classes in it."""
    found: list[ast.stmt] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(child, ast.stmt):
            found.append(child)
        found += _own_statements(child)
    return found


def texts_of(node: ast.expr, scope: Scope, depth: int = 0) -> list[str]:
    """The texts that an expression may have: several where it depends on a condition."""
    if depth > 6:
        return [UNKNOWN]
    if isinstance(node, ast.Constant):
        return [" ".join(str(node.value).split())]
    if isinstance(node, ast.JoinedStr):
        return [_tidy("".join(_part(each, scope, depth) for each in node.values))]
    if isinstance(node, ast.IfExp):
        both = texts_of(node.body, scope, depth + 1) + texts_of(node.orelse, scope, depth + 1)
        return list(dict.fromkeys(filter(None, both)))[:MOST]
    if isinstance(node, ast.BoolOp):
        return texts_of(node.values[-1], scope, depth + 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = (texts_of(each, scope, depth + 1)[:1] or [""] for each in (node.left, node.right))
        return [_tidy(join(left[0], right[0]))]
    if isinstance(node, ast.Name) and node.id in scope.assigned:
        values = scope.assigned[node.id]
        return [text for value in values for text in texts_of(value, scope, depth + 1)][:MOST]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("strip", "lstrip"):
        return texts_of(node.func.value, scope, depth + 1)
    if isinstance(node, ast.Call) and _called(node) in SAYS:
        return [SAYS[_called(node)]]
    if isinstance(node, ast.Call) and (returned := _returned(node, scope)):
        texts = (text for each in returned for text in texts_of(each, scope, depth + 1))
        return list(dict.fromkeys(filter(None, texts)))[:MOST]
    return [f"‹{_name_of(node)}›"]


def _part(node: ast.expr, scope: Scope, depth: int) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.FormattedValue)
    value = node.value
    if isinstance(value, ast.Name) and len(given := scope.assigned.get(value.id, [])) == 1:
        value = given[0] if isinstance(given[0], ast.Call) and _returned(given[0], scope) else value
    if isinstance(value, ast.Call) and len(_returned(value, scope)) == 1:
        return texts_of(value, scope, depth + 1)[0]
    if isinstance(value, ast.Name) and all(_is_text(each) for each in scope.assigned.get(value.id, [value])[:2]):
        return texts_of(value, scope, depth + 1)[0]
    return f"‹{_name_of(value)}›"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and node.value is not None)


def _name_of(node: ast.expr) -> str:
    """What a value is called, for people: the last name of the expression."""
    if isinstance(node, ast.Name):
        return node.id.strip("_").replace("_", " ").lower()
    if isinstance(node, ast.Attribute):
        return node.attr.strip("_").replace("_", " ").lower()
    if isinstance(node, ast.Subscript):
        return _name_of(node.value)
    if isinstance(node, ast.BoolOp):
        return _name_of(node.values[0])
    if isinstance(node, ast.Call):
        name = _called(node)
        if name in ("len", "sum", "int", "max"):
            return "number"
        if name == "join" and node.args:
            return _name_of(node.args[-1])
        return _name_of(node.args[-1]) if node.args else "…"
    return "…"


def _returned(node: ast.Call, scope: Scope) -> list[ast.expr]:
    return [node] if _called(node) in SAYS else scope.assigned.get(f"{_called(node)}()", [])


def join(one: str, other: str) -> str:
    """Two texts, with a space where neither has one; none before a full stop or a comma."""
    return one + other if other[:1] in ("", " ", ".", ",", ":") else f"{one} {other}"


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def functions_of(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """Functions and methods that return texts alone, as ``name()``, with what they return."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            returns = [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value is not None]
            if any(_is_text(each) for each in returns) and all(isinstance(each, _TEXTS) for each in returns):
                found[f"{node.name}()"] = returns
    return found


def _tidy(text: str) -> str:
    return re.sub(r"(‹…›\s*)+‹…›", UNKNOWN, " ".join(text.split()))
