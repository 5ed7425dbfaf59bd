"""Count tests that compare a sentence: ``python tests/tools/count_sentence_tests.py`` prints counts per directory."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORD = re.compile(r"^[A-Za-z][A-Za-z'-]*[.,;:?]?$")
DIRECTORIES = ("tests", "*/tests", "plugins/*/tests")
WORDS = 4
"""Least number of plain words of a sentence."""


def is_sentence(text: str) -> bool:
    """Return True if a text has several plain words in a row, as prose has and data does not."""
    run = longest = 0
    for part in text.replace("\\", "").split():
        run = run + 1 if WORD.match(part) else 0
        longest = max(longest, run)
    return longest >= WORDS


def sentence_tests(tree: ast.Module) -> Iterator[str]:
    """Yield the names of tests that compare a sentence, also if a parameter of the test brings it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            compared = list(_compared(node))
            names = {each.id for part in compared for each in ast.walk(part) if isinstance(each, ast.Name)}
            parts = [*compared, *(part for each in node.decorator_list for part in _parameters(each, names))]
            if any(is_sentence(text) for part in parts for text in _texts(part)):
                yield node.name


def _compared(test: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(test):
        if isinstance(node, ast.keyword) and node.arg == "match":
            yield node.value
        elif isinstance(node, ast.Assert):
            # The assertion's message is not compared.
            for each in ast.walk(node.test):
                is_start = isinstance(each, ast.Call) and getattr(each.func, "attr", "") in ("startswith", "endswith")
                if is_start or isinstance(each, ast.Compare):
                    yield each


def _parameters(decorator: ast.expr, names: set[str]) -> Iterator[ast.AST]:
    """Yield the values of the parameters with these names."""
    if not isinstance(decorator, ast.Call) or len(decorator.args) < 2:
        return
    keys, rows = decorator.args[:2]
    if isinstance(keys, ast.Constant) and keys.value in names:
        yield rows
    elif isinstance(keys, ast.Tuple) and isinstance(rows, ast.List | ast.Tuple):
        for row in rows.elts:
            if isinstance(row, ast.Tuple):
                values = zip(keys.elts, row.elts, strict=False)
                yield from (value for key, value in values if getattr(key, "value", "") in names)


def _texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        yield " ".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        return
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value
        return
    for child in ast.iter_child_nodes(node):
        yield from _texts(child)


def main() -> None:
    counts: Counter[str] = Counter()
    for file in (each for directory in DIRECTORIES for each in ROOT.glob(f"{directory}/**/test_*.py")):
        parts = file.relative_to(ROOT).parts[:-1]
        depth = 3 if parts[0] in ("rllm_core", "rllm") else 2
        counts["/".join(parts[:depth])] += len(list(sentence_tests(ast.parse(file.read_text(encoding="utf-8")))))
    for directory, count in sorted(counts.items()):
        print(f"{count:4} {directory}")
    print(f"{sum(counts.values()):4} in all")


if __name__ == "__main__":
    main()
