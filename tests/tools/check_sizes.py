"""Limits on the size of the sources: ``python tests/tools/check_sizes.py`` is part of ``make lint``.

A code line is a line with something other than a comment or a docstring. If your change makes a package smaller, lower
its limits. If a new feature needs more lines, raise them in the commit that adds the feature.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_FILE = 400
"""Maximum number of code lines in a file."""
NEW_PACKAGE = (500, 20)
"""The limits of a package that is not in the table."""
LIMITS = {
    "rllm": (11_545, 11),
    "rllm_core": (6_361, 14),
    "rllm_tinker": (1_649, 11),
    "rllm_verl": (3_977, 11),
    "plugins/rllm_backend_kit": (1_568, 11),
    "plugins/rllm_data": (616, 12),
    "plugins/rllm_envs": (3_176, 16),
    "plugins/rllm_estimators": (1_232, 12),
    "plugins/rllm_gateway": (6_252, 8),
    "plugins/rllm_local": (4_767, 11),
    "plugins/rllm_plugin_kit": (5_243, 9),
    "plugins/rllm_record": (2_724, 10),
    "plugins/rllm_record/src/rllm_record/interchange": (1_554, 10),
    "plugins/rllm_record/src/rllm_record/store": (783, 10),
    "plugins/rllm_renderers": (386, 16),
    "plugins/rllm_serving": (845, 15),
    "plugins/rllm_tinker_server": (3_717, 8),
    "plugins/rllm_view": (2_709, 12),
    "rllm/src/rllm/builtin": (8_194, 13),
    "rllm/src/rllm/builtin/budgets": (107, 29),
    "rllm/src/rllm/builtin/code_reward": (600, 10),
    "rllm/src/rllm/builtin/pending_rollouts": (130, 24),
    "rllm/src/rllm/builtin/plugin_packages": (598, 13),
    "rllm/src/rllm/builtin/doctor": (2_089, 8),
    "rllm/src/rllm/builtin/reward_lab": (487, 14),
    "rllm/src/rllm/builtin/tree_rollouts": (322, 18),
    "plugins/rllm_vllm": (758, 12),
}
"""The maximum number of code lines of each package or feature, and its maximum number of files per 1,000 code lines. A
file counts for the longest of these directories."""
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
    """Print the total, and return one line for each limit that the sources exceed."""
    problems: list[str] = []
    sizes: dict[str, list[int]] = {}
    for file in sorted([*ROOT.glob("*/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]):
        path, size = file.relative_to(ROOT).as_posix(), count_code_lines(file.read_text(encoding="utf-8"))
        own = [directory for directory in LIMITS if path.startswith(f"{directory}/")]
        sizes.setdefault(max(own, key=len) if own else path.partition("/src/")[0], []).append(size)
        if size > MAX_FILE:
            problems.append(f"{path}: {size} code lines, limit {MAX_FILE}")
    for directory, files in sizes.items():
        lines, (max_lines, max_files) = sum(files), LIMITS.get(directory, NEW_PACKAGE)
        if lines > max_lines:
            problems.append(f"{directory}: {lines:,} code lines, limit {max_lines:,}")
        if len(files) * 1_000 > max_files * lines:
            problems.append(f"{directory}: {len(files)} files in {lines:,} code lines, limit {max_files} per 1,000")
    sys.stdout.write(f"code lines: {sum(map(sum, sizes.values())):,}\n")
    return problems


if __name__ == "__main__":
    if problems := find_problems():
        sys.exit("\n".join(f"error: {problem}" for problem in problems))
