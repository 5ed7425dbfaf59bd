"""The table of right answers: rows of ``answer_keys.txt``, and one way to write a response for each of five styles."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from rllm.builtin.tasks.math_reward import find_math, read_math
from rllm.builtin.tasks.math_values import equal_values, read_value
from rllm.builtin.tasks.math_worker import make_equal

STYLES = {
    "last line": "{}",
    "box": r"\boxed{{{}}}",
    "statement": "The answer is {}.",
    "####": "6 * 7\n#### {}",
    "tag": "<answer>{}</answer>",
}


class Row(NamedTuple):
    """A right answer, five right ways to write it, and wrong answers."""

    key: str
    right: list[str]
    wrong: list[str]


def read_rows() -> Iterator[Row]:
    """Yield the rows of the table."""
    text = Path(__file__).with_name("answer_keys.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.strip() and not line.startswith(("# ", "## ")):
            right, wrong = line.split("¦¦")
            key, *ways = [each.strip() for each in right.split("¦")]
            yield Row(key, ways, [each.strip() for each in wrong.split("¦")])


def responses(row: Row, number: int, *, all_styles: bool = False) -> Iterator[tuple[str, str, bool]]:
    """Yield style, response and the expected reward. Without `all_styles`, each way has one style, which rotates."""
    for expected, ways in ((True, row.right), (False, row.wrong)):
        for place, way in enumerate(ways):
            for index, (style, form) in enumerate(STYLES.items()):
                if all_styles or index == (number + place) % len(STYLES):
                    yield style, form.format(way), expected


def is_right(said: str, key: str, equal: Callable[[str, str], bool]) -> bool:
    """Return True if `math` gives the response a reward. It compares in this process."""
    values = [read_value(text) for text in find_math(said).all_texts]
    right = read_math(key)
    return bool(values) and all(value is not None and equal_values(value, right, equal) for value in values)


def find_mistakes(*, all_styles: bool = False) -> tuple[list[tuple[str, str, str, bool]], int]:
    """Return the mistakes (key, style, response, expected reward), and the number of responses."""
    equal = make_equal()
    mistakes, count = [], 0
    for number, row in enumerate(read_rows()):
        for style, said, expected in responses(row, number, all_styles=all_styles):
            count += 1
            if is_right(said, row.key, equal) != expected:
                mistakes.append((row.key, style, said, expected))
    return mistakes, count


if __name__ == "__main__":
    json.dump({"antlr": version("antlr4-python3-runtime"), "mistakes": find_mistakes()[0]}, sys.stdout)
