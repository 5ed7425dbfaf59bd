"""What the source says of errors: the message of each, what it says to do, and the module it is in."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from error_text import VALUE, Scope, functions_of, join, texts_of

ROOT = Path(__file__).parents[2]
BASE = "RllmError"
CHECKS = ("refused", "unused", "warning")
"""What checks of `rllm.planning` make: (key, text, remedy)."""
OF_SERVERS = {"RefusedError": 2, "invalid": 0, "RequestRefused": 0, "ServerError": 0}
"""Answers to clients of the two servers -> which argument is the message."""
REASONS = ("rllm.planning.unused_keys",)
"""Modules whose functions return (what is wrong with a value, what to do)."""
LINES = ("rllm.config.problems",)
"""Modules that make the lines of a message, which is raised elsewhere."""
OPTIONS = ("BaseModel", "Params", "Section")
"""Base classes of options: a `ValueError` in one of them is said behind key and value."""


@dataclass(frozen=True, order=True)
class Message:
    """One error, as written in the source; what is filled in is the name of a value in ‹›."""

    module: str
    text: str
    remedy: str
    """What to do; empty where the message says it."""


def messages() -> list[Message]:
    """Every message of all distributions, by module and text."""
    trees = dict(_trees())
    classes = _subclasses(BASE, trees.values())
    options = set().union(*(_subclasses(name, trees.values()) for name in OPTIONS))
    constants = _constants(trees.values())
    found = {
        message
        for module, tree in trees.items()
        for message in _messages(
            module, Scope.of(tree, constants.with_names(functions_of(tree))), tree, classes, options
        )
    }
    return sorted(found)


def _constants(trees: Iterable[ast.Module]) -> Scope:
    """What names in capitals stand for, and functions that return a text; all modules that have the name agree."""
    found: dict[str, dict[str, ast.expr]] = {}
    for tree in trees:
        for name, texts in functions_of(tree).items():
            found.setdefault(name, {}).update({ast.dump(text): text for text in texts})
        for name, values in Scope.of(tree).assigned.items():
            if name.isupper():
                found.setdefault(name, {}).update({ast.dump(value): value for value in values})
    return Scope({name: list(values.values()) for name, values in found.items() if len(values) == 1})


def _trees() -> Iterator[tuple[str, ast.Module]]:
    for project in sorted([*ROOT.glob("*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")]):
        source = project.parent / "src"
        for file in sorted(source.rglob("*.py")):
            if "templates" not in file.parts:
                yield ".".join(file.relative_to(source).with_suffix("").parts), ast.parse(file.read_text("utf-8"))


def _subclasses(base: str, trees: Iterable[ast.Module]) -> set[str]:
    """Names of a class and of all that are made from it."""
    pairs = [
        (node.name, _last(parent))
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for parent in node.bases
    ]
    names = {base}
    while more := {name for name, parent in pairs if parent in names} - names:
        names |= more
    return names


def _last(node: ast.expr) -> str:
    """``ConfigError`` of ``errors.ConfigError``; ``Params`` of ``Params[T]``."""
    if isinstance(node, ast.Subscript):
        return _last(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _messages(module: str, names: Scope, tree: ast.Module, classes: set[str], options: set[str]) -> Iterator[Message]:
    server = module.startswith(("rllm_gateway", "rllm_tinker_server"))
    if module in LINES:
        lines = (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr))
        texts = (text for line in lines for text in texts_of(line, names))
        yield from (Message(module, text, "") for text in texts if text.endswith(".") and _says_something(text))
    if module in REASONS:
        yield from _reasons(module, tree, names)
    for node, scope in _calls(tree, names):
        name, arguments = _last(node.func), node.args
        if name in classes:
            texts, remedies = arguments[:1], arguments[1:2]
        elif name in CHECKS and len(arguments) > 1:
            texts, remedies = arguments[1:2], arguments[2:3]
        elif server and name in OF_SERVERS:
            texts, remedies = arguments[OF_SERVERS[name] :][:1], []
        elif name == "ValueError" and scope.owner in options:
            texts, remedies = arguments[:1], []
        else:
            continue
        remedy = " Or: ".join(text for each in remedies for text in texts_of(each, scope))
        for each in texts:
            yield from (Message(module, text, remedy) for text in texts_of(each, scope) if _says_something(text))


def _reasons(module: str, tree: ast.Module, names: Scope) -> Iterator[Message]:
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2:
                reason, remedy = node.value.elts
                said = [each for each in texts_of(reason, names) if _says_something(each)]
                scope = names.within(function)
                advice = " Or: ".join(texts_of(remedy, scope))
                yield from (Message(module, join(VALUE, each), advice) for each in said)


def _calls(node: ast.AST, scope: Scope) -> Iterator[tuple[ast.Call, Scope]]:
    """Every call below a node, with what names mean there."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child, scope
        opens = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        yield from _calls(child, scope.within(child) if opens else scope)


def _says_something(text: str) -> bool:
    """Not one that hands on the words of another."""
    return sum(letter.isalpha() for letter in re.sub(r"‹[^›]*›", "", text)) > 3
