"""Limits on the size of the sources: ``python tests/tools/check_sizes.py`` is part of ``make lint``.

A code line is a line with something other than a comment or a docstring.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = "rllm_core/src"
MAX_CORE = 6_500
MAX_FILE = 400
_NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def count_code_lines(source: str) -> int:
    """Return the number of code lines of a Python file's text."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def find_problems() -> list[str]:
    """Print the totals, and return one line for each limit that the sources exceed."""
    sizes = {
        file.relative_to(ROOT).as_posix(): count_code_lines(file.read_text(encoding="utf-8"))
        for pattern in ("*/src/**/*.py", "plugins/*/src/**/*.py")
        for file in sorted(ROOT.glob(pattern))
    }
    core = sum(size for name, size in sizes.items() if name.startswith(CORE))
    sys.stdout.write(f"code lines: {core:,} in {CORE} (limit {MAX_CORE:,}), {sum(sizes.values()):,} in all sources\n")
    problems = [f"{name}: {size} code lines, limit {MAX_FILE}" for name, size in sizes.items() if size > MAX_FILE]
    if core > MAX_CORE:
        problems.append(f"{CORE}: {core:,} code lines, limit {MAX_CORE:,}. Put new features into rllm/ or plugins/.")
    return problems


if __name__ == "__main__":
    if problems := find_problems():
        sys.exit("\n".join(f"error: {problem}" for problem in problems))
