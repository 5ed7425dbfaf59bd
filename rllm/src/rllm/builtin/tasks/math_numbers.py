"""Numbers as responses write them: digits, fractions, powers of ten, money, and English."""

from __future__ import annotations

import re
from fractions import Fraction

from rllm.builtin.tasks.units import read_unit

MAX_DIGITS = 300
DECIMAL = r"(?:\d{1,3}(?:[, _]\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)"
POWER = r"10\s*\^\s*(?:\{\s*([-+]?\d{1,3})\s*\}|([-+]?\d{1,3}))"
NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:"
    rf"(?P<whole>[1-9]\d*)\s*(?:\\frac\{{\s*(?P<mixed_top>\d+)\s*\}}\{{\s*(?P<mixed_bottom>\d+)\s*\}}"
    rf"|\s\s*(?P<mixed_top2>\d+)\s*/\s*(?P<mixed_bottom2>\d+))"
    rf"|\\frac\{{\s*(?P<top>[-+]?{DECIMAL})\s*\}}\{{\s*(?P<bottom>[-+]?{DECIMAL})\s*\}}"
    rf"|(?P<cut>\d*\.\d*)\\overline\{{\s*(?P<repeated>\d+)\s*\}}"
    rf"|(?P<top2>{DECIMAL})\s*/\s*(?P<bottom2>{DECIMAL})"
    rf"|(?P<mantissa>{DECIMAL})\s*(?:\\times|\\cdot|\*|x(?=\s*10))\s*{POWER}"
    rf"|{POWER}"
    rf"|(?P<decimal>{DECIMAL})(?:[eE](?P<exponent>[-+]?\d{{1,3}})(?![\w.]))?"
    rf")(?![\d.]*\d)"
)
CURRENCY = re.compile(r"([-+]?)\s*(?:US|U\.S\.|CA|AU|A|C)?\s*([$€£¥₹])\s*(?=[-+]?[.\d])")
CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee"}
MULTIPLES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBER_WORDS = {word: number for number, word in enumerate(_ONES.split())}
NUMBER_WORDS |= {word: 10 * number for number, word in enumerate(_TENS.split(), 2)}
NUMBER_WORD = re.compile(rf"[\s-]*(?:and\s+(?=\w+\b))?({'|'.join([*NUMBER_WORDS, *MULTIPLES])})\b", re.IGNORECASE)


def read_number(text: str) -> tuple[Fraction, int, str] | None:
    """Return the number that is a text, its digits after the point (0 for a fraction), and its unit."""
    prefix = ""
    if found := CURRENCY.match(text):
        text, prefix = found[1] + text[found.end() :], CURRENCIES[found[2]]
    digits = 0
    if match := NUMBER.match(text):
        if len(match[0]) > MAX_DIGITS:
            return None
        try:
            number, digits = _value_of(match)
        except ZeroDivisionError:
            return None
        rest = text[match.end() :]
        while (multiple := NUMBER_WORD.match(rest)) and (factor := MULTIPLES.get(multiple[1].lower())):
            number, digits, rest = number * factor, 0, rest[multiple.end() :]
    elif words := _read_number_words(text):
        number, rest = words
    else:
        return None
    unit = None if NUMBER_WORD.match(rest) else read_unit(rest)
    if unit is None or (prefix and unit not in ("", prefix)):
        return None
    return number, digits, prefix or unit


def _read_number_words(text: str) -> tuple[Fraction, str] | None:
    """Return the number at the start of text such as ``two hundred five``, and the rest of the text."""
    total = group = 0
    position, last = 0, 0
    while found := NUMBER_WORD.match(text, position):
        word = found[1].lower()
        if position == 0 and (word in MULTIPLES or found.start(1) > 0):
            return None
        if word in MULTIPLES:
            size = MULTIPLES[word]
            group = max(group, 1) * size
            if size >= 1000:
                total, group = total + group, 0
        elif position and last < 100 and (last < 20 or NUMBER_WORDS[word] >= 10):
            # Two numbers, as in "one two".
            return None
        else:
            group += NUMBER_WORDS[word]
        last = NUMBER_WORDS.get(word, 100)
        position = found.end()
    return (Fraction(total + group), text[position:]) if position else None


def _value_of(match: re.Match[str]) -> tuple[Fraction, int]:
    """Return the number of a match, and its digits after the point."""
    groups = match.groupdict()

    def decimal(name: str) -> Fraction:
        return Fraction(re.sub(r"[, _]", "", groups[name]))

    digits = 0
    if groups["whole"] is not None:
        top, bottom = groups["mixed_top"] or groups["mixed_top2"], groups["mixed_bottom"] or groups["mixed_bottom2"]
        number = int(groups["whole"]) + Fraction(int(top), int(bottom))
    elif groups["top"] is not None:
        number = decimal("top") / decimal("bottom")
    elif groups["cut"] is not None:
        places = len(groups["cut"].partition(".")[2])
        repeated = Fraction(int(groups["repeated"]), 10 ** len(groups["repeated"]) - 1)
        number = Fraction(f"0{groups['cut']}0") + repeated / 10**places
    elif groups["top2"] is not None:
        number = decimal("top2") / decimal("bottom2")
    elif groups["decimal"] is not None:
        number = decimal("decimal") * Fraction(10) ** int(groups["exponent"] or 0)
        digits = len(groups["decimal"].partition(".")[2]) if not groups["exponent"] else 0
    else:
        powers = [each for each in match.groups() if each is not None]
        number = Fraction(10) ** int(powers[-1])
        if groups["mantissa"] is not None:
            number *= decimal("mantissa")
    return (-number if groups["sign"] == "-" else number), digits


def write_number(number: Fraction, digits: int) -> str:
    """Return a number in LaTeX, with its digits after the point."""
    if number.denominator == 1:
        return str(number)
    sign, size = "-" if number < 0 else "", abs(number)
    if digits and (size * 10**digits).denominator == 1:
        scaled = str(int(size * 10**digits)).zfill(digits + 1)
        return f"{sign}{scaled[:-digits]}.{scaled[-digits:]}"
    return rf"{sign}\frac{{{size.numerator}}}{{{size.denominator}}}"
