"""Answers that reasoning-gym would run as Python.

Four of its scorers call `eval` on the model's answer, five give it to sympy's `parse_expr`, which does so too, with all
built-in functions in reach. A model that trains on them must not come to run commands.
"""

from __future__ import annotations

import ast
import re
import sys

EVALUATE = ("algorithmic.binary_matrix", "algorithmic.spiral_matrix", "algorithmic.string_insertion", "games.n_queens")
"""Modules whose scorer calls `eval`; what they hope for is a list."""
PARSE = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
"""Generators whose scorer calls `parse_expr`."""
MATHEMATICS = re.compile(r"(?:[0-9+\-*/^(),=\s]|\.(?![A-Za-z_])|[A-Za-z]\w*)*", re.ASCII)
WORDS = re.compile("[A-Za-z]|sqrt|cbrt|exp|log|ln|pi|Abs|a?(?:sin|cos|tan|cot|sec|csc)h?|erfi?|Ei|Si|Ci|Rational")
"""Variables and functions of a formula."""


def disable_eval() -> None:
    """Let the scorers that call `eval` read literals only."""
    for name in EVALUATE:
        vars(sys.modules[f"reasoning_gym.{name}"])["eval"] = ast.literal_eval


def is_safe_answer(generator: str, answer: str) -> bool:
    """True if an answer is a formula, or if the generator's scorer does not evaluate formulas."""
    if generator not in PARSE:
        return True
    words = set(re.findall(r"[A-Za-z_]\w*", answer))
    return bool(MATHEMATICS.fullmatch(answer)) and all(map(WORDS.fullmatch, words))
