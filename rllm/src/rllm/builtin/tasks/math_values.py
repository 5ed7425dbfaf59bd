"""Mathematical answers as values, and the comparison of two values.

`read_value` reads a number with its unit, a time, a date, a list, an interval, an inequality or text. Everything else
is an expression, which only math-verify can compare.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from rllm.builtin.tasks.math_numbers import read_number, write_number
from rllm.builtin.tasks.math_text import write_plain
from rllm.builtin.tasks.units import ALIASES, read_unit

Kind = Literal["number", "parts", "text", "list", "interval", "assignments", "expression"]
LONGEST = 2_000
"""Maximum number of characters of an answer."""
SURE_DIGITS = 6
"""Significant digits of a decimal number that is equal to a fraction or a root, such as 0.333333 and 1/3."""

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
DATES = [
    re.compile(r"(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"),
    re.compile(r"(?P<year>\d{4})/(?P<month>\d{1,2})/(?P<day>\d{1,2})"),
    re.compile(rf"{MONTH}\s+(?:the\s+)?{DAY}(?:\s*,?\s*(?P<year>\d{{4}}))?", re.IGNORECASE),
    re.compile(rf"(?:the\s+)?{DAY}\s+(?:of\s+)?{MONTH}(?:\s*,?\s*(?P<year>\d{{4}}))?", re.IGNORECASE),
]
WRITTEN_DATE = re.compile(r"\d{1,2}([/.-])\d{1,2}\1\d{4}")
"""A date whose day and month may be exchanged. It is equal only to the same text."""
TIME = re.compile(
    r"(\d+(?:\.\d+)?(?:\s*:\s*\d+(?:\.\d+)?)+)\s*(a\.?m\.?|p\.?m\.?|o'clock)?(?:\s+hours?)?", re.IGNORECASE
)
HOUR = re.compile(r"(\d{1,2})\s*(a\.?m\.?|p\.?m\.?)", re.IGNORECASE)

ASSIGNED = re.compile(
    r"\s*([A-Za-z](?:_\{?\w+\}?|')?(?:\s*\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])*\s*\))?)\s*(?:=|\\in(?![A-Za-z]))\s*"
)
CHAIN = re.compile(r"(?<![<>!=\\])=(?!=)")
SIGN = r"(\\(?:le|ge|ne)(?![A-Za-z])|[<>])"
INEQUALITY = re.compile(rf"(.+?)\s*{SIGN}\s*(.+?)(?:\s*{SIGN}\s*(.+))?")
FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
VARIABLE = re.compile(r"[A-Za-z](?:_\w)?|\\(?:theta|alpha|beta|lambda|phi)")
IN_BRACKETS = re.compile(r"\s*[,;]\s*(?:(?:and|or)\b\s*)?|\s+(?:and|or|&)\s+", re.IGNORECASE)
SEPARATOR = re.compile(r"\s*(?:,(?!\d{3}(?!\d))|;)\s*(?:(?:and|or)\b\s*)?|\s+(?:and|or|&)\s+", re.IGNORECASE)
"""Commas before three digits separate thousands, if the list has no brackets."""
UNION = re.compile(r"\s*\\cup\s*|\s+(?:U|union)\s+")
PLUS_MINUS = re.compile(r"\\(pm|mp)(?![A-Za-z])\s*")
MEASURED = re.compile(r"(.*(?:[\d})\]!]|\\pi))(\s+(?:[A-Za-z]{2,}).*?|\s+m\^?[23])")
"""An expression with a unit after it, such as ``36\\pi cm^2``."""
COMPOUND = re.compile(r"[-+]?\d[\d.]*\s*(?!mod\b)[A-Za-z]{2,}\s+\d[\d.]*\s*[A-Za-z]{2,}")
"""Two measures, such as ``18 ft 3 in``, which are compared as text."""
OPERATION = re.compile(r"[-+({\s]*[\d.]+[)}\s]*(?:(?:[-+*/]|\\(?:times|cdot|div)(?![A-Za-z]))[-+({\s]*[\d.]+[)}\s]*)+")
"""Arithmetic of plain numbers, such as ``12 * 12``. Evaluating it may be the task."""
BASE = re.compile(r"\d_\{?(\d+)")
PAIRS = {"(": ")", "[": "]", "{": "}"}
COMMAND = re.compile(r"\\[A-Za-z]+")
WORD = re.compile(r"[A-Za-z]{3,}|\b(?:no|No|NO|is|of)\b")
FUNCTIONS = {"sin", "cos", "tan", "cot", "sec", "csc", "log", "exp", "arcsin", "arccos", "arctan", "sqrt", "max", "min"}
ARTICLE = re.compile(r"(?:the|an?)\s+(?=\w)")
SAME_TEXT = {
    r"\emptyset": "empty set",
    "{}": "empty set",
    r"\{\}": "empty set",
    "null set": "empty set",
    "no solutions": "no solution",
    "dne": "does not exist",
}
OPTION = re.compile(r"\(?([A-Z])[).:]\s+(?!.*(?<![A-Za-z])[A-Z][).:]\s).+|\(?([A-Z])[).]")


@dataclass(frozen=True)
class Value:
    """One answer. Two values with the same kind, text, unit and items are equal."""

    kind: Kind
    text: str
    """The answer without variants of notation, which is LaTeX for an expression."""
    number: Fraction | None = None
    digits: int = 0
    """Number of digits after the decimal point of a decimal number. 0 for fractions and whole numbers."""
    unit: str = ""
    items: tuple[Value, ...] = ()
    brackets: str = ""
    """The brackets of a list or an interval. None for a list without brackets, whose items have no order."""


Equal = Callable[[str, str], bool]
"""Compares two expressions in LaTeX."""


@lru_cache(4096)
def read_value(text: str, *, depth: int = 0) -> Value | None:
    """Return the value of an answer. None if the text has no answer, or is too long."""
    if len(text) > LONGEST or depth > 4:
        return None
    plain = _strip(write_plain(text) if depth == 0 else text)
    if not re.search(r"\w|\\infty|\\emptyset|\{\}", plain):
        return None
    if r"\begin{" in plain:
        return Value("expression", write_expression(plain))
    for read in (_read_date, _read_time, _read_number, _read_assignments, _read_union, _read_list, _read_inequality):
        value = read(plain, depth)
        if value is not None:
            return value
    parts = _read_chain(plain)
    if len(parts) > 1:
        values = [read_value(part, depth=depth + 1) for part in parts]
        numbers = {value.number for value in values if value is not None and value.number is not None}
        last = values[-1]
        if numbers and last is not None and OPERATION.fullmatch(last.text):
            # 4 = 2 + 2
            last = next(value for value in reversed(values) if value is not None and value.number is not None)
        return last if len(numbers) < 2 else None
    if parts != [plain]:
        return read_value(parts[0], depth=depth + 1)
    if COMPOUND.fullmatch(plain):
        return Value("text", plain)
    if measured := MEASURED.fullmatch(plain):
        unit = read_unit(measured[2])
        if unit and re.split(r"[/^ ]", unit)[0] in ALIASES:
            plain = measured[1]
    if words := _read_words(plain):
        return words
    return (
        None
        if re.search(r"(?<![_^\d.])\d[\d.]*\s+\d|\\(?:boxed|fbox)", plain)
        else Value("expression", write_expression(plain))
    )


def equal_values(said: Value, key: Value, equal: Equal) -> bool:
    """Return True if a response's value is a right answer. `equal` compares expressions."""
    if said == key:
        return True
    if said.number is not None and key.number is not None:
        return _equal_numbers(said, key)
    if said.kind == key.kind == "interval":
        return said.brackets == key.brackets and _equal_items(said.items, key.items, equal)
    if said.kind == key.kind == "parts":
        return _equal_parts(said, key)
    if said.kind == key.kind == "assignments":
        return said.text == key.text and _equal_items(said.items, key.items, equal)
    if {said.kind, key.kind} in ({"assignments", "list"}, {"assignments", "interval"}):
        return "()" in (said.brackets + key.brackets) and _equal_items(said.items, key.items, equal)
    if said.kind == key.kind == "list":
        return _equal_lists(said, key, equal)
    if {said.kind, key.kind} == {"interval", "list"}:
        bare, other = (said, key) if said.kind == "list" else (key, said)
        return bare.brackets == "" and other.brackets == "()" and _equal_items(bare.items, other.items, equal)
    comparable = {"number", "expression"}
    if said.kind not in comparable or key.kind not in comparable or (said.unit and key.unit and said.unit != key.unit):
        return False
    is_unevaluated = OPERATION.fullmatch(said.text) and not OPERATION.fullmatch(key.text)
    bases = [BASE.findall(value.text) for value in (said, key)]
    is_comparable = not is_unevaluated and bases[0] in ([], bases[1])
    return said.text == key.text or (is_comparable and equal(said.text, key.text))


def needs_process(said: Value, key: Value) -> bool:
    """Return True if only math-verify can decide that two values are equal or not."""
    asked = False

    def note(first: str, second: str) -> bool:
        nonlocal asked
        asked = True
        return True

    equal_values(said, key, note)
    return asked


def _equal_numbers(said: Value, key: Value) -> bool:
    first, second = said.number, key.number
    assert first is not None and second is not None
    if "percent" in (said.unit, key.unit):
        percent, other = (said, key) if said.unit == "percent" else (key, said)
        if other.unit in ("", "percent"):
            share, number = percent.number, other.number
            assert share is not None and number is not None
            if other.unit == "percent":
                return share == number
            # A right answer of 0.5 is 50 %, and one of 50 is 50 % too, because its unit is missing.
            return share == 100 * number or (share == number and (percent is key or abs(number) > 1))
        return False
    if said.unit and key.unit and said.unit != key.unit:
        return False
    if first == second:
        return True
    return any(
        decimal.digits and not fraction.digits and fraction.number.denominator > 1 and _rounds(decimal, fraction.number)
        for decimal, fraction in ((said, key), (key, said))
        if fraction.number is not None
    )


def _rounds(decimal: Value, exact: Fraction) -> bool:
    """Return True if a decimal number with many digits is an exact number, rounded or cut off."""
    assert decimal.number is not None
    scale = 10**decimal.digits
    significant = len(str(abs(int(decimal.number * scale))))
    return significant >= SURE_DIGITS and abs(decimal.number - exact) * scale < 1


def _equal_parts(said: Value, key: Value) -> bool:
    """Compare dates, times and ratios. A year, and am or pm, may be missing."""
    if said.brackets != key.brackets:
        return False
    if said.unit != key.unit and ((said.unit and key.unit) or 24 in (said.digits, key.digits)):
        return False
    return said.text == key.text


def _equal_lists(said: Value, key: Value, equal: Equal) -> bool:
    if len(said.items) != len(key.items):
        return False
    if said.brackets != key.brackets and "" not in (said.brackets, key.brackets):
        return False
    if "(" in said.brackets + key.brackets or "[" in said.brackets + key.brackets:
        return _equal_items(said.items, key.items, equal)
    left = list(key.items)
    for item in said.items:
        found = next((each for each in left if each == item), None)
        if found is None:
            found = next((each for each in left if equal_values(item, each, equal)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _equal_items(said: Sequence[Value], key: Sequence[Value], equal: Equal) -> bool:
    return len(said) == len(key) and all(equal_values(*pair, equal) for pair in zip(said, key, strict=True))


def _strip(text: str) -> str:
    """Return text without quotation marks, a final full stop, and brackets around everything."""
    text = text.strip(" \t\n\"'")
    text = re.sub(r"(?<=[^.])[.;,:]+$|(?<=[A-Za-z])!$", "", text) if not text.endswith("...") else text
    text = text.strip(" \"'")
    while text[:1] == "(" and _closing(text, 0) == len(text) - 1 and not _split(text[1:-1], IN_BRACKETS)[1:]:
        text = text[1:-1].strip()
    while (
        text[:1] == "{"
        and _closing(text, 0) == len(text) - 1
        and not _split(text[1:-1], IN_BRACKETS)[1:]
        and text != "{}"
    ):
        text = text[1:-1].strip()
    return text


def _closing(text: str, start: int) -> int:
    """Return the position of the bracket that closes the one at `start`, or -1. Kinds of brackets may be mixed."""
    level = 0
    for position in range(start, len(text)):
        if text[position] in "([{":
            level += 1
        elif text[position] in ")]}":
            level -= 1
            if level == 0:
                return position
    return -1


def _split(text: str, separator: re.Pattern[str]) -> list[str]:
    """Split text at a separator that is outside of all brackets."""
    parts, start, level, position = [], 0, 0, 0
    while position < len(text):
        if text[position] in "([{":
            level += 1
        elif text[position] in ")]}":
            level -= 1
        elif level == 0 and (match := separator.match(text, position)) and match.end() > position:
            parts.append(text[start:position])
            start = position = match.end()
            continue
        position += 1
    return [*parts, text[start:]]


def _read_number(text: str, depth: int) -> Value | None:
    if found := read_number(text):
        number, digits, unit = found
        return Value("number", write_number(number, digits), number, digits, unit)
    return None


def _read_date(text: str, depth: int) -> Value | None:
    if WRITTEN_DATE.fullmatch(text):
        return Value("parts", text, brackets="date")
    for pattern in DATES:
        if found := pattern.fullmatch(text):
            month = found["month"].lower()
            number = int(month) if month.isdigit() else 1 + MONTHS.index(month[:3])
            if not 1 <= number <= 12 or not 1 <= int(found["day"]) <= 31:
                return None
            return Value("parts", f"{number}-{int(found['day'])}", unit=found["year"] or "", brackets="date")
    return None


def _read_time(text: str, depth: int) -> Value | None:
    found = HOUR.fullmatch(text)
    if found is None:
        found = TIME.fullmatch(text)
        if found is None:
            return None
    parts = [_write_part(each) for each in found[1].split(":")]
    half = (found[2] or "").lower().replace(".", "") if found[2] and "m" in found[2].lower() else ""
    if half and len(parts) == 1:
        parts.append("0")
    if not half and re.fullmatch(r"(?:1[3-9]|2[0-3])\s*:\s*[0-5]\d(?:\s*:\s*[0-5]\d)?", found[1]):
        # 22:30 is 10:30 pm, but 10:30 is not.
        parts[0] = str(int(parts[0]) - 12)
        return Value("parts", ":".join(parts), unit="pm", brackets="time", digits=24)
    return Value("parts", ":".join(parts), unit=half, brackets="time")


def _write_part(part: str) -> str:
    whole, point, decimals = part.strip().partition(".")
    return (whole.lstrip("0") or "0") + point + decimals


def _read_assignments(text: str, depth: int) -> Value | None:
    """Read ``x = 2``, which is 2, and ``x = 2, y = 3``, which has names."""
    parts = _split(text, SEPARATOR)
    names = [ASSIGNED.match(part) for part in parts]
    if not names[0]:
        return None
    if len(parts) == 1:
        return read_value(text[names[0].end() :], depth=depth + 1)
    found = [(match[1], part[match.end() :]) for match, part in zip(names, parts, strict=True) if match]
    if len(found) != len(parts) or len({name for name, _ in found}) != len(found):
        return None
    values = [(name.replace(" ", ""), read_value(part, depth=depth + 1)) for name, part in sorted(found)]
    if any(value is None for _, value in values):
        return None
    return Value("assignments", ",".join(name for name, _ in values), items=tuple(v for _, v in values if v))


def _read_union(text: str, depth: int) -> Value | None:
    parts = _split(text, UNION)
    return _make_list(parts, "", depth) if len(parts) > 1 else None


def _read_list(text: str, depth: int) -> Value | None:
    brackets, inner = "", text.replace(r"\{", "{").replace(r"\}", "}")
    if inner[:1] in PAIRS and _closing(inner, 0) == len(inner) - 1:
        brackets, inner = inner[0] + inner[-1], inner[1:-1]
    parts = _split(inner, IN_BRACKETS if brackets else SEPARATOR)
    if brackets == "{}" and not inner.strip():
        return Value("text", SAME_TEXT["{}"])
    if len(parts) > 1 or brackets == "{}":
        value = _make_list(parts, brackets, depth)
        if value and len(parts) == 2 and set(brackets) & set("[]"):
            return Value("interval", "", items=value.items, brackets=brackets)
        if value and len(parts) == 2 and brackets == "()":
            return Value("interval", "", items=value.items, brackets=brackets)
        return value
    if PLUS_MINUS.search(text):
        plus = PLUS_MINUS.sub(lambda sign: "+" if sign[1] == "pm" else "-", text)
        minus = PLUS_MINUS.sub(lambda sign: "-" if sign[1] == "pm" else "+", text)
        return _make_list([plus, minus], "", depth)
    return None


def _make_list(parts: Sequence[str], brackets: str, depth: int) -> Value | None:
    items: list[Value] = []
    for part in parts:
        value = read_value(part, depth=depth + 1)
        if value is None:
            return None
        # 1, ±2 has three values.
        items += value.items if value.kind == "list" and not value.brackets else [value]
    if brackets in ("", "{}"):
        # "1/2, or 0.5" is one number.
        items = list({(each.number, each.unit) if each.number is not None else each: each for each in items}.values())
        if len(items) == 1:
            return items[0]
    return Value("list", "", items=tuple(items), brackets=brackets)


def _read_inequality(text: str, depth: int) -> Value | None:
    """Read an inequality for one variable as an interval."""
    found = INEQUALITY.fullmatch(text)
    if not found:
        return None
    first, sign, middle, second_sign, last = found.groups()
    if second_sign is None:
        if VARIABLE.fullmatch(middle) and sign in FLIPPED:
            first, sign, middle = middle, FLIPPED[sign], first
        if not VARIABLE.fullmatch(first):
            return None
        if sign == r"\ne":
            ends = [(r"-\infty", middle, "()"), (middle, r"\infty", "()")]
        elif sign in (">", r"\ge"):
            ends = [(middle, r"\infty", ("(" if sign == ">" else "[") + ")")]
        else:
            ends = [(r"-\infty", middle, "(" + (")" if sign == "<" else "]"))]
    else:
        if not VARIABLE.fullmatch(middle) or _is_less(sign) != _is_less(second_sign):
            return None
        if not _is_less(sign):
            first, sign, second_sign, last = last, FLIPPED[second_sign], FLIPPED[sign], first
        ends = [(first, last, ("(" if sign == "<" else "[") + (")" if second_sign == "<" else "]"))]
    values = [_read_list(f"{brackets[0]}{low},{high}{brackets[1]}", depth) for low, high, brackets in ends]
    if None in values:
        return None
    return values[0] if len(values) == 1 else Value("list", "", items=tuple(each for each in values if each))


def _is_less(sign: str) -> bool:
    return sign in ("<", r"\le")


def _read_chain(text: str) -> list[str]:
    """Return the parts of ``2 + 2 = 4``, and the left part of ``22/7 ≈ 3.14``. An equation has one part."""
    text = re.split(r"\\(?:approx|simeq)(?![A-Za-z])", text)[0].strip() or text
    parts = [part.strip() for part in CHAIN.split(text)]
    if len(parts) < 2 or not all(parts):
        return [text]
    has_variables = re.search(r"[A-Za-z]", COMMAND.sub("", parts[0])) and not re.fullmatch(r"[A-Za-z ]{3,}", parts[0])
    return [text] if has_variables and len(parts) == 2 else parts


def _read_words(text: str) -> Value | None:
    """Read text. Case, articles and punctuation do not count. A single letter keeps its case."""
    if option := OPTION.fullmatch(text):
        return Value("text", option[1] or option[2])
    if re.fullmatch("[A-Z]", text):
        return Value("text", text)
    if text in SAME_TEXT:
        return Value("text", SAME_TEXT[text])
    words = [word for word in WORD.findall(COMMAND.sub(" ", text)) if word.lower() not in FUNCTIONS]
    if not words:
        return None
    plain = " ".join(re.sub(r"[.,;:!?\"]+(?=\s|$)", "", text.casefold()).split())
    plain = ARTICLE.sub("", plain, count=1) if ARTICLE.match(plain) else plain
    return Value("text", SAME_TEXT.get(plain, plain))


def write_expression(text: str) -> str:
    """Return an expression in the LaTeX that math-verify reads with all versions of ANTLR."""
    text = text.removeprefix("+").strip()
    text = re.sub(r"\s*degree\b\s*", r"^\\circ ", text)
    text = re.sub(r"(\d)[ ,](?=\d{3}(?!\d))", r"\1", text)
    text = re.sub(r"(?<=[\d)])\s*\*\s*|\s*\*\s*(?=[\d(A-Za-z])", r"\\cdot ", text)
    text = re.sub(
        r"(?<![A-Za-z\\])(sin|cos|tan|cot|sec|csc|log|ln|exp|arcsin|arccos|arctan)(?![A-Za-z])", r"\\\1", text
    )
    text = re.sub(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([-+]?\d+)(?![\w.])", r"\1\\cdot 10^{\2}", text)
    text = re.sub(r"\^\(([^()]*)\)", r"^{\1}", text)
    text = re.sub(r"\s+(?=[^A-Za-z])|(?<=[^A-Za-z])\s+", "", text)
    text = re.sub(r"(?<![A-Za-z]) (?=[A-Za-z])", "", text)
    return re.sub(r"(?<![\w.^_{}\\])1(?=[A-Za-z])|(?<=[A-Za-z)])\^1(?!\d)", "", text)
