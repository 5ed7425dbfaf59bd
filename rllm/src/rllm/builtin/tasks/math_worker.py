"""The process that compares expressions: ``python -m rllm.builtin.tasks.math_worker``.

It reads lines ``{"said": […], "answers": […], "seconds": …}`` and writes one line for each. A timer of the operating
system kills it if a comparison takes longer, because Python cannot interrupt a power of large numbers. If the calling
process dies, this process must not compute forever.
"""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from rllm.builtin.tasks.math_reward import read_math
from rllm.builtin.tasks.math_values import COMMAND, SURE_DIGITS, equal_values, read_value
from rllm_serving.line_worker import answer_lines

NUMBER = re.compile(r"(-?)(?:(\d+)(?:\.(\d+))?|\\frac\{(\d+)\}\{(\d+)\})")
LETTER = re.compile("[A-Za-z]")
PRECISION = 30
"""Digits to which an expression is computed when it is compared with a number."""


def main() -> None:
    """Answer until the input ends."""
    equal = make_equal()
    logging.disable()  # It warns for every response that its own time limits are off.
    sys.set_int_max_str_digits(0)  # Long numbers are no error. The timer ends comparisons of too long ones.
    responses = sys.stdout
    sys.stdout = sys.stderr  # Output of a library is no response.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def answer(question: str) -> str:
        asked = json.loads(question)
        signal.setitimer(signal.ITIMER_REAL, asked["seconds"])
        try:
            response: dict[str, Any] = {"correct": _compare(asked["said"], asked["answers"], equal)}
        except Exception as error:  # noqa: BLE001  (sympy raises anything; the reward says what)
            response = {"problem": f"{type(error).__name__}: {error}"[:200]}
        signal.setitimer(signal.ITIMER_REAL, 0)
        return json.dumps(response)

    answer_lines(answer, sys.stdin, responses)


def _compare(said: list[str], answers: list[str], equal: Callable[[str, str], bool]) -> bool:
    """Return True if all final answers of the response are equal to one of the right answers."""
    values = [value for value in map(read_value, said) if value is not None]
    keys = [read_math(each) for each in answers]
    return any(all(equal_values(value, key, equal) for value in values) for key in keys)


def make_equal() -> Callable[[str, str], bool]:
    """Return the comparison of two expressions in LaTeX. It loads math-verify and sympy."""
    import sympy
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse as parse_text, verify

    # Without units, because the library takes the h of r^2h for hours.
    written = NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="all", equations=False
    )
    config = [LatexExtractionConfig(boxed_match_priority=0, normalization_config=written)]

    @lru_cache(256)
    def parse(text: str) -> Any:
        found = parse_text(
            rf"\boxed{{{text}}}", extraction_config=config, fallback_mode="no_fallback", parsing_timeout=None
        )
        return found[0] if found else None

    def equal(first: str, second: str) -> bool:
        # The library ignores the case of variables.
        letters = [set(LETTER.findall(COMMAND.sub(" ", text))) for text in (first, second)]
        if letters[0] != letters[1] and {x.lower() for x in letters[0]} == {x.lower() for x in letters[1]}:
            return False
        expressions = [parse(first), parse(second)]
        if None in expressions:
            return False
        for number, expression in ((first, expressions[1]), (second, expressions[0])):
            if match := NUMBER.fullmatch(number):
                return _equals_number(expression, match, sympy)
        return bool(verify(*expressions, timeout_seconds=None))

    return equal


def _equals_number(expression: Any, match: re.Match[str], sympy: Any) -> bool:
    """True if an expression has the value of a number. A number with enough digits may be rounded."""
    if not isinstance(expression, sympy.Expr) or expression.free_symbols:
        return False
    sign, whole, decimals, top, bottom = match.groups()
    number = sympy.Rational(int(top), int(bottom)) if top else sympy.Rational(f"{whole}.{decimals or 0}")
    number = -number if sign else number
    difference = abs(sympy.N(expression - number, PRECISION))
    if not difference.is_Float and not difference.is_Integer:
        return False
    significant = len(f"{whole}{decimals}".lstrip("0")) if decimals else 0
    size = max(1, abs(number))
    tolerance = 10.0 ** -len(decimals) if significant >= SURE_DIGITS else float(size) * 10.0 ** -(PRECISION - 10)
    return bool(difference < tolerance)


if __name__ == "__main__":
    main()
