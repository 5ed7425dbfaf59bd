"""Right answers of tasks, written so that math-verify reads them."""

from __future__ import annotations

import re

MARKED = re.compile(r"\\boxed|\\\(|\\\[|(?<!\\)\$[^$]*[^$\s\\][^$]*(?<!\\)\$")
"""Text that is marked as mathematics. A single dollar sign is a currency."""
CURRENCY = re.compile(r"(?:\b[A-Z]{1,2})?\\?\$|[€£¥]")
GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:\\[,! ]|[ _\u00a0\u2009\u202f])\d{3})+(?!\d)")
"""A number whose thousands are separated by something else than commas."""
PERCENT = re.compile(r"(.*\d)\s*(?:\\?%|percent)")
SCIENTIFIC = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+))[eE]([-+]?\d+)")
MIXED = re.compile(r"(-?\d+)\s+(\d+)/(\d+)")
WITH_UNIT = re.compile(r"([-+]?[\d.,]+)\s+(?:[A-Za-z]{3,}|[A-Za-z]{2,}/[A-Za-z]+)")


def find_result(answer: str) -> str:
    """Return an answer without its solution. Answers of GSM8K end with the number, after ``####``."""
    return answer.rpartition("####")[2].strip()


def write_forms(answer: str) -> list[str]:
    """Return an answer in one or more ways that the library reads. Empty if the answer contains nothing to read.

    Answers that are not marked as mathematics get a box.
    """
    answer = find_result(answer)
    if MARKED.search(answer):
        return [answer]
    answer = CURRENCY.sub("", answer).replace("{,}", ",").replace("°", r"^\circ")
    answer = GROUPED.sub(lambda match: re.sub(r"\\.|\D", "", match[0]), answer).strip()
    answer = answer.removesuffix(".") if not answer.endswith("..") else answer
    if found := PERCENT.fullmatch(answer):
        # The library reads 5% outside of a box as 5 and as 0.05, and in a box as text.
        return [f"{found[1]}%", rf"\boxed{{{found[1]}\%}}", rf"\boxed{{{found[1]}%}}"]
    if found := SCIENTIFIC.fullmatch(answer):
        answer = rf"{found[1]} \cdot 10^{{{int(found[2])}}}"
    elif found := MIXED.fullmatch(answer):
        answer = rf"{found[1]}\frac{{{found[2]}}}{{{found[3]}}}"
    elif found := WITH_UNIT.fullmatch(answer):
        return [rf"\boxed{{{found[1]}}}", rf"\boxed{{{answer}}}"]
    return [rf"\boxed{{{answer}}}"] if answer else []
