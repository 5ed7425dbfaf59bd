"""Checks pages, messages, docstrings, comments and names against the rules in docs/contributing/style.md.

``python tests/tools/check_style.py`` is part of ``make lint`` and compares the counts with the limits below.
``python tests/tools/check_style.py PATH...`` lists the findings below each path.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "contributing" / "style.md"
LIMITS = {
    ("E", "pages"): 0,
    ("E", "messages"): 0,
    ("E", "docstrings"): 0,
    ("E", "comments"): 0,
    ("W", "pages"): 251,
    ("W", "messages"): 140,
    ("W", "docstrings"): 707,
    ("W", "comments"): 89,
    ("D", "docstrings"): 191,
    ("N", "names"): 70,
    ("N", "test names"): 195,
    ("T", "test names"): 8,
}
"""The largest allowed number of findings of a level in a kind of text. Lower a limit when the count falls."""
NOT_CHECKED = ("CHANGELOG.md", "docs/reference/errors.md", "docs/reference/config.md")
"""Pages whose text is checked at its source, or is history."""
NAMES = ("names", "test names")
ONLY_KINDS = {"D": ("docstrings",), "N": NAMES, "T": ("test names",)}
"""The only kinds of text that rules of a level check. E and W rules check every kind except names."""
_MESSAGE_CALL = re.compile(r"(Error|Warning|warn|warning|refused|unused|Finding|Problem|echo|option|argument|Field)$")
_DIRECTIVE = re.compile(r"#\s*(type:|noqa|pragma:)")


@dataclass(frozen=True)
class Rule:
    level: str
    name: str
    pattern: re.Pattern[str]
    suggestion: str


@dataclass(frozen=True)
class Text:
    """A piece of text without its code, and its place."""

    kind: str
    path: str
    line: int
    text: str


def read_rules() -> list[Rule]:
    """Return the rules of the style page."""
    block = re.search(r"^```text\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert block is not None
    rules = []
    for line in block[1].splitlines():
        level, name, rest = line.split(None, 2)
        pattern, _, suggestion = rest.rpartition(" -- ")
        rules.append(Rule(level, name, re.compile(pattern.strip(), re.MULTILINE), suggestion))
    return rules


def read_page(path: str, text: str) -> Iterator[Text]:
    """Return the prose of a Markdown page in one piece, with as many lines as the page."""

    def blank(found: re.Match[str]) -> str:
        return "\n" * found[0].count("\n")

    text = re.sub(r"<!--.*?-->", blank, text, flags=re.DOTALL)
    text = re.sub(r"^ *(```|~~~).*?^ *\1", blank, text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(    |\t).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "X", text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    yield Text("pages", path, 1, re.sub(r"https?://\S+", "", text))


def read_names(kind: str, path: str, source: str) -> Iterator[Text]:
    """Return the names of functions and classes of a Python file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield Text(kind, path, node.lineno, node.name)


def read_source(path: str, source: str) -> Iterator[Text]:
    """Return the docstrings, the comments, the messages and the names of a Python file."""
    yield from read_names("names", path, source)
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else []:
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                yield Text("docstrings", path, each.lineno, without_code(each.value.value).strip())
        if isinstance(node, ast.Call):
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if _MESSAGE_CALL.search(called):
                for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                    if " " in (text := without_code(literal_text(argument))):
                        yield Text("messages", path, argument.lineno, text)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not _DIRECTIVE.match(token.string):
            yield Text("comments", path, token.start[0], without_code(token.string))


def literal_text(node: ast.expr) -> str:
    """Return the text of a string or f-string, with X instead of each value in it; "" for any other expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
    return ""


def without_code(text: str) -> str:
    return re.sub(r"`+[^`]*`+", "X", text)


def read_texts(places: list[str]) -> Iterator[Text]:
    """Return all text in the repository's pages and sources below `places`; everywhere if there are none."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *places]
    for path in sorted(
        set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())
    ):
        if path.endswith(".md") and path not in NOT_CHECKED and (ROOT / path).exists():
            yield from read_page(path, (ROOT / path).read_text(encoding="utf-8"))
        elif path.endswith(".py") and "/src/" in path and (ROOT / path).exists():
            yield from read_source(path, (ROOT / path).read_text(encoding="utf-8"))
        elif path.endswith(".py") and "tests/" in path and (ROOT / path).exists():
            yield from read_names("test names", path, (ROOT / path).read_text(encoding="utf-8"))


def find(rules: list[Rule], text: Text) -> Iterator[tuple[Rule, int, str]]:
    """Return each finding in a piece of text: the rule, the line, and the words."""
    for rule in rules:
        if text.kind in ONLY_KINDS[rule.level] if rule.level in ONLY_KINDS else text.kind not in NAMES:
            for found in rule.pattern.finditer(text.text):
                yield rule, text.line + text.text.count("\n", 0, found.start()), found[0].strip()


def list_findings(places: list[str]) -> None:
    """Print each E, D, N and T finding below `places`, and the number of W findings."""
    rules, weak = read_rules(), 0
    for text in read_texts(places):
        for rule, line, words in find(rules, text):
            if rule.level == "W":
                weak += 1
            else:
                sys.stdout.write(f"{text.path}:{line}: {rule.level} {rule.name}: {words!r}. Write: {rule.suggestion}\n")
    sys.stdout.write(f"{weak} W findings\n")


def find_problems() -> list[str]:
    """Print the counts, and return one line for each count above its limit."""
    rules = read_rules()
    counts = Counter((rule.level, text.kind) for text in read_texts([]) for rule, *_ in find(rules, text))
    shown = ", ".join(f"{level} {kind} {counts[level, kind]:,}/{limit:,}" for (level, kind), limit in LIMITS.items())
    sys.stdout.write(f"style findings/limits: {shown}\n")
    return [
        f"{counts[key]:,} {key[0]} findings in {key[1]}, limit {limit:,}. "
        "List them with `python tests/tools/check_style.py PATH`, and see docs/contributing/style.md."
        for key, limit in LIMITS.items()
        if counts[key] > limit
    ]


if __name__ == "__main__":
    if places := sys.argv[1:]:
        list_findings(places)
    elif problems := find_problems():
        sys.exit("\n".join(f"error: {problem}" for problem in problems))
