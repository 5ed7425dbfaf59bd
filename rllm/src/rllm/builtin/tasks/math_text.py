"""One way to write mathematics: Unicode, markup and LaTeX variants become the LaTeX that `math_values` reads."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

_COMMANDS = (
    "\u00d7 times \u00b1 pm \u2213 mp \u2260 ne \u2248 approx \u221a sqrt \u221e infty \u222a cup \u2229 "
    "cap \u2208 in \u2220 angle \u25b3 triangle \u03c0 pi \u03b8 theta \u03b1 alpha \u03b2 beta \u03bb "
    "lambda \u03c6 phi"
)
SIGNS = {
    **{sign: rf"\{name} " for sign, name in zip(_COMMANDS.split()[::2], _COMMANDS.split()[1::2], strict=True)},
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212\ufe63\uff0d", "-"),
    **dict.fromkeys("\u00a0\u2007\u2009\u202f\u200a\u2002\u2003\u3000", " "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),
    **dict.fromkeys("\u00b7\u22c5\u2219", r"\cdot "),
    **dict.fromkeys("\u00f7\u2044\u2215", "/"),
    **dict.fromkeys("\u2018\u2019", "'"),
    **dict.fromkeys("\u201c\u201d", '"'),
    **dict.fromkeys("\u00b0\u00ba", r"^\circ "),
    **dict.fromkeys("\u2264\u2a7d", r"\le "),
    **dict.fromkeys("\u2265\u2a7e", r"\ge "),
    **dict.fromkeys("\u2205\u00d8", r"\emptyset "),
    "\u221b": r"\sqrt[3]",
    "\u211d": r"\mathbb{R}",
    "\u3002": ".",
}
"""LaTeX or ASCII for characters that models write in text."""
TABLE = str.maketrans(SIGNS)
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
FRACTION_SIGN = re.compile("[¼-¾⅐-⅞]")
SPACES = re.compile(r"(?<!\\)\\[,;:> ]|\\q?quad\b|~|\s+")
WRAPPER = re.compile(
    r"\\(?:text(?:bf|it|rm|tt|sf|normal)?|math(?:rm|bf|it|sf|tt|bb)|mbox|operatorname|boxed|fbox|bm|boldsymbol|emph)\s*"
    r"\{([^{}]*)\}"
)
IGNORED = re.compile(r"\\(?:left|right|displaystyle|textstyle|limits|[bB]igg?[lr]?)(?![A-Za-z])|\\(?:[()\[\]])|[`]")
BOLD = re.compile(r"\*\*([^*]+)\*\*|(?<![\w*])\*([^*\s](?:[^*]*[^*\s])?)\*(?![\w*])")
SHORT_FRACTION = re.compile(
    r"\\frac\s*(?:(\d)|\{([^{}]*)\})\s*(?:(\d)|\{([^{}]*)\}|([A-Za-z]))|\\frac ([A-Za-z])([A-Za-z])"
)
SHORT_ROOT = re.compile(r"\\sqrt\s*(\[\d\])?\s*(?:(\d+(?:\.\d+)?|[A-Za-z])|\(([^()]*)\))")
PLAIN: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"^\s*(?:minus|negative)\s+(?=[\d\\.$])", re.IGNORECASE), "-"),
    (re.compile(r"\\textcolor\s*\{\w+\}|\\color\s*\{\w+\}|\\large(?![A-Za-z])"), ""),
    (re.compile(r"\\(?:begin|end)\{(?:aligned|align|equation)\*?\}|&(?=\s*=)|\\\\(?=\s*&\s*=)"), ""),
    (re.compile(r"^\s*answer\s*:\s*|^\s*(?:it|that)['\u2019]s\s+(?=[\d\\.$])|^\s*=\s*", re.IGNORECASE), ""),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(?:lt|gt)(?![A-Za-z])"), lambda match: {"l": "<", "g": ">"}[match[0][1]]),
    (re.compile(r"\\leq?(?:slant)?(?![A-Za-z])|<="), r"\\le "),
    (re.compile(r"\\geq?(?:slant)?(?![A-Za-z])|>="), r"\\ge "),
    (re.compile(r"\\neq?(?![A-Za-z])|!="), r"\\ne "),
    (re.compile(r"\\(?:varnothing|empty)(?![A-Za-z])"), r"\\emptyset"),
    (re.compile(r"(?<![\\A-Za-z])sqrt(?![A-Za-z])"), r"\\sqrt"),
    (re.compile(r"(?<![\\A-Za-z])pi(?![A-Za-z])"), r"\\pi "),
    (re.compile(r"(?<![\\A-Za-z])(?:infinity|inf|oo)(?![A-Za-z])", re.IGNORECASE), r"\\infty "),
    (re.compile(r"\+/-|\+-(?=\s*[\d\\])"), r"\\pm "),
    (re.compile(r"(?<=\d)\s*\*\*\s*(?=[\d({-])"), "^"),
    (re.compile(r"\^\{?\\(?:circ|degree)\}?|\\degree(?![A-Za-z])"), " degree "),
    (re.compile(r"(?<=\d)\s*x\s*(?=\d)"), r"\\times "),
    (re.compile(r"\\log_\{?e\}?(?![A-Za-z])"), r"\\ln "),
    (re.compile(r"\\\{\s*\\\}"), r"\\emptyset "),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\^\{([A-Za-z0-9])\}"), r"^\1"),
]


def write_signs(text: str) -> str:
    """Return text with Unicode signs, superscripts and fraction signs in LaTeX."""
    if text.isascii():
        return text
    text = FRACTION_SIGN.sub(_write_fraction, text)
    text = SUPERSCRIPT.sub(lambda match: "^{" + match[0].translate(SUPERSCRIPTS) + "}", text)
    text = text.translate(TABLE)
    return "".join(unicodedata.normalize("NFKC", each) if "\uff00" <= each <= "\uffef" else each for each in text)


def _write_fraction(match: re.Match[str]) -> str:
    top, bottom = unicodedata.normalize("NFKC", match[0]).split("\u2044")
    return rf" \frac{{{top}}}{{{bottom}}}"


def _write_frac(match: re.Match[str]) -> str:
    top, bottom = (each for each in match.groups() if each is not None)
    return rf"\frac{{{top}}}{{{bottom}}}"


def write_plain(text: str) -> str:
    """Return an answer without markup, in the one form that `math_values` reads."""
    text = write_signs(text)
    # A dollar sign before a number is a currency, if no second one closes it.
    text = text.replace(r"\$", "\0")
    if text.count("$") % 2 == 0:
        text = text.replace("$", " ")
    text = text.replace("\0", "$")
    text = BOLD.sub(lambda match: match[1] or match[2], text)
    text = IGNORED.sub("", text)
    while (unwrapped := WRAPPER.sub(r" \1 ", text)) != text:
        text = unwrapped
    text = re.sub(r"(\d)\\[,!](?=\d{3})", r"\1,", text).replace(r"\!", "")
    for pattern, written in PLAIN:
        text = pattern.sub(written, text)
    text = SHORT_FRACTION.sub(_write_frac, text)
    text = SHORT_ROOT.sub(lambda match: rf"\sqrt{match[1] or ''}{{{match[2] or match[3]}}}", text)
    return SPACES.sub(" ", text).strip()
