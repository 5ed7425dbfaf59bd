"""Sums of a shell script, ``$((…))``: whole numbers, variables, ``+ - * / %`` and parentheses."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda one, other: int(one / other),  # the shell cuts off what is behind the point
    ast.Mod: operator.mod,
}


def evaluate_sum(text: str, value_of: Callable[[str], str | None]) -> int:
    """The number that a sum makes.

    Args:
        value_of: a variable's text; None for one that the script does not set.

    Raises:
        ValueError: it holds something else, or a variable that is no whole number.
    """
    try:
        return _evaluated(ast.parse(text, mode="eval").body, value_of)
    except (SyntaxError, ZeroDivisionError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _evaluated(node: ast.expr, value_of: Callable[[str], str | None]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and (text := value_of(node.id)) is not None:
        return int(text)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluated(node.operand, value_of)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluated(node.left, value_of), _evaluated(node.right, value_of))
    raise ValueError(ast.dump(node))
