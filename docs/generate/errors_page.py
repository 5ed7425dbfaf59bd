"""The page of all errors, made from the source: ``python docs/generate/errors_page.py``."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)+")
OTHERS = {"Finding", "Problem", "refused", "unused", "warning", "ConfigLine", "Mismatch", "error_class"}
"""Callables besides error classes that take a code."""
FORMATS = {"format", "format_message", "get", "replace", "rstrip", "split", "strip", "sum", "upper", "values"}
"""Methods whose result the page names like what they are called on."""
INTRODUCTION = """\
# Errors

<!-- Made by `make docs` from the source; do not edit. A test fails when it is stale. -->

Look up an error by its code, the attribute `code` of the error. The command line prints it before the message,
and the hint on its own line:

    error[file-not-found]: There is no configuration file `run.yaml`.
    hint: Check its path.

- In Python, read `code`, `message` and `hint` of an `rllm_core.errors.RllmError`, the base of all error classes.
- Exit code 2: the command or the configuration cannot be used, and nothing was started.
- Exit code 1: the run began and failed. To continue from its latest checkpoint, add `--resume`.
- Add `--debug` (in Python, set `RLLM_DEBUG=1`) to see the traceback.

The tables have one row per message. ‹name› is a value that the message fills in. `refused`, `unused` and `warning`
are problems of a run that has not started, a `Finding` is from `rllm plugins doctor`,
a `ConfigLine` from a `ConfigError`, and a `Mismatch` from `rllm record check`.
"""


class ErrorCall(NamedTuple):
    """A call that makes an error, in the source."""

    module: str
    name: str
    call: ast.Call
    within: ast.AST
    """The innermost function around it, or the module."""

    def texts(self, position: int, *keywords: str) -> list[str]:
        """Return the texts that an argument may have, found by its position or by one of its names."""
        named = [each.value for each in self.call.keywords if each.arg in keywords]
        return [text for each in (named or self.call.args[position:])[:1] for text in _texts(each, self.within)]


def error_calls() -> Iterator[ErrorCall]:
    """Yield every call of an error class, problem or finding in all packages."""
    sources = sorted([*ROOT.glob("*/src"), *ROOT.glob("plugins/*/src")])
    paths = [(file, source) for source in sources for file in source.rglob("*.py") if "templates" not in file.parts]
    files = {file.relative_to(source).with_suffix("").as_posix(): ast.parse(file.read_text()) for file, source in paths}
    bases = {module: _bases(tree) for module, tree in files.items()}
    names = {"RllmError"}
    while more := {name for each in bases.values() for name, of in each.items() if names & of} - names:
        names |= more
    for module, tree in files.items():
        visible = _imported_bases(tree, bases) | bases[module]
        foreign = {name for name, of in visible.items() if not names & of} - {"RllmError"}
        yield from _calls(tree, tree, module, names - foreign)


def _bases(tree: ast.Module) -> dict[str, set[str]]:
    return {
        node.name: {_last(base) for base in node.bases} for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    }


def _imported_bases(tree: ast.Module, bases: dict[str, dict[str, set[str]]]) -> dict[str, set[str]]:
    """Return the bases of a module's imported classes, because packages can have classes with the same name."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    found = ((each.name, bases.get(str(node.module).replace(".", "/"), {})) for node in imports for each in node.names)
    return {name: of[name] for name, of in found if name in of}


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _calls(node: ast.AST, within: ast.AST, module: str, names: set[str]) -> Iterator[ErrorCall]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            name = _last(child.func)
            if name in names or (name in OTHERS and isinstance(child.func, ast.Name)):
                yield ErrorCall(module, name, child, within)
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from _calls(child, child if is_function else within, module, names)


def _texts(node: ast.expr, within: ast.AST) -> list[str]:
    """Return the texts of an expression; several if a condition or an earlier assignment chooses one."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.JoinedStr):
        parts = (each.value if isinstance(each, ast.FormattedValue) else each for each in node.values)
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else _filled_in(part) for part in parts)]
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body, within), *_texts(node.orelse, within)]
    if isinstance(node, ast.BoolOp):
        return [text for each in node.values for text in _texts(each, within)]
    if isinstance(node, ast.BinOp):
        return [first + rest for first in _texts(node.left, within) for rest in _texts(node.right, within)]
    if isinstance(node, ast.Name):
        assigned = [each for each in ast.walk(within) if isinstance(each, ast.Assign)]
        values = [each.value for each in assigned if _last(each.targets[0]) == node.id]
        return [text for each in values for text in _texts(each, ast.Module([], []))] or [_filled_in(node)]
    return [_filled_in(node)]


def _filled_in(node: ast.AST) -> str:
    return f"‹{_phrase(node)}›"


def _phrase(node: ast.AST) -> str:
    """Return a few words for the value of an expression: its name without what formats it."""
    match node:
        case ast.Constant(value):
            return str(value)
        case ast.Name(name) | ast.Attribute(ast.Name("self" | "params"), name):
            return name.strip("_").replace("_", " ").lower()
        case ast.Attribute(ast.Call(ast.Name("type"), [each]), "__name__"):
            return f"type of {_phrase(each)}"
        case ast.Attribute(value, name):
            return f"{_phrase(value)} {name.strip('_').replace('_', ' ')}"
        case ast.Call(ast.Name("len"), [each]):
            return f"number of {_phrase(each)}"
        case ast.Call(ast.Attribute(_, "join") | ast.Name(), [each]) | ast.Call(ast.Name("map"), [_, each]):
            return _phrase(each)
        case ast.Call(ast.Attribute(value, name)) if name in FORMATS:
            return _phrase(value)
        case ast.Call(ast.Name("getattr"), [each, *_]):
            return _phrase(each)
        case ast.Call(ast.Name(name) | ast.Attribute(_, name)):
            return name.strip("_").replace("_", " ")
        case ast.BoolOp(_, [each, *_]) | ast.IfExp(_, each) | ast.JoinedStr([each, *_]):
            return _phrase(each)
        case ast.Subscript(value) | ast.Starred(value) | ast.GeneratorExp(value) | ast.BinOp(value):
            return _phrase(value)
        case ast.FormattedValue(value):
            return _phrase(value)
    return "value"


def errors_page() -> str:
    """Return the page, in Markdown."""
    rows: dict[str, set[tuple[str, ...]]] = {}
    for each in error_calls():
        area = ".".join(each.module.split("/")[: 2 if each.module.startswith(("rllm/", "rllm_core/")) else 1])
        message = {"Finding": 9, "Problem": 2, "refused": 2, "unused": 2, "warning": 2}.get(each.name, 1)
        texts = (each.texts(message, "problem"), each.texts(message + 1, "remedy", "hint"))
        cells = (each.name, *(" / ".join(dict.fromkeys(filter(None, text))) for text in texts))
        codes = [f"`{code}`" for code in each.texts(0, "code") if CODE.fullmatch(code)]
        rows.setdefault(area, set()).update((code, *map(_cell, cells)) for code in codes)
    parts = [INTRODUCTION]
    for area in sorted(area for area in rows if rows[area]):
        lines = sorted(f"| {' | '.join(row)} |" for row in rows[area])
        parts.append("\n".join([f"## {area}\n", "| code | class | message | hint |", "|---|---|---|---|", *lines, ""]))
    return "\n".join(parts)


def _cell(text: str) -> str:
    return re.sub(r"([|<*\[\]\\])", r"\\\1", " ".join(text.split()))


if __name__ == "__main__":
    sys.stdout.write(errors_page())
