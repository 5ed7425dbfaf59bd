"""Units after a number, such as ``km/h`` and ``square meters``."""

from __future__ import annotations

import re

ALIASES = {
    "percent": "% percent percents percentage pct per_cent percentage_points",
    "degree": "degree degrees deg",
    "degree c": "degree_c degrees_c degree_celsius degrees_celsius celsius",
    "degree f": "degree_f degrees_f degree_fahrenheit degrees_fahrenheit fahrenheit",
    "dollar": "dollar dollars usd $ bucks us_dollars",
    "cent": "cent cents ¢",
    "euro": "euro euros eur €",
    "pound": "pound pounds lb lbs gbp £",
    "m": "m meter meters metre metres",
    "inch": "inch inches in",
    "foot": "foot feet ft",
    "yard": "yard yards yd",
    "mile": "mile miles mi",
    "second": "second seconds sec secs s",
    "minute": "minute minutes min mins",
    "hour": "hour hours hr hrs h",
    "g": "g gram grams",
    "kg": "kg kilogram kilograms kgs",
    "mg": "mg milligram milligrams",
    "liter": "l liter liters litre litres",
    "ml": "ml milliliter milliliters millilitre millilitres",
    "ounce": "oz ounce ounces",
    "ampere": "a amp amps ampere amperes",
    "hertz": "hz hertz",
    "radian": "rad rads radian radians",
    "kj": "kj kilojoule kilojoules",
    "kw": "kw kilowatt kilowatts",
    "mph": "mph miles_per_hour mile/hour",
    "km/hour": "kph kmh",
    "unit": "unit units",
    **{each: f"{each[0]} {each} {each}s" for each in ("newton", "joule", "watt", "volt", "kelvin")},
    **{
        f"{each[0]}m": f"{each[0]}m {each}meter {each}meters {each}metre {each}metres"
        for each in ("centi", "milli", "kilo")
    },
}
UNIT = {alias.replace("_", " "): name for name, aliases in ALIASES.items() for alias in aliases.split()}
ONE_LETTER = set("msghlLNJWVAKCF")
"""Letters that are units if a space is before them. All other letters are variables."""
_ATTACHED = (
    "% $ € £ ¢ cm mm km kg mg ml mL ft lb lbs oz mi yd hr min Hz kJ kW mph kph percent degree hours "
    "minutes seconds meters euros dollars"
)
ATTACHED = set(_ATTACHED.split())
"""Units that need no space before them."""
_NO_UNITS = (
    "and or not no nor but than is are was were isn't wrong incorrect false if then else plus minus times squared "
    "cubed factorial over divided more less to sin cos tan log ln exp sqrt mod pi either neither maybe perhaps instead "
    "probably possibly might could actually wait half quarter third fourth fifth tenth hundredth thousandth"
)
NO_UNITS = set(_NO_UNITS.split())
WORDS = re.compile(r"[%$€£¢]|[A-Za-zµΩ]+(?:'[a-z]+)?|[/·*^{}()\-]|\d+|\\cdot|\.(?=\s|$)|\s+")
LONGEST = 60
POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}


def read_unit(text: str) -> str | None:
    """Return the unit in the text after a number: empty if it has none, and None if the text is no unit."""
    rest = text.strip()
    if not rest:
        return ""
    if len(rest) > LONGEST or rest[0] in "/*^-({" or re.search(r"[A-Za-z] \d", rest):
        return None
    tokens = WORDS.findall(rest)
    if "".join(tokens) != rest:
        return None
    words = [each for each in tokens if not each.isspace()]
    letters = [each for each in words if each[0].isalpha()]
    if len(letters) > 1 and letters[-1] in ("squared", "cubed"):
        letters.pop()
    if any({each.lower(), _singular(each.lower())} & NO_UNITS for each in letters):
        return None
    attached = not text[0].isspace()
    if attached and words[0] not in ATTACHED:
        return None
    if letters and len(letters[0]) == 1 and letters[0] not in ONE_LETTER:
        return None
    if letters and len(letters[0]) == 2 and letters[0].lower() not in {*UNIT, *POWERS}:
        return None
    pairs = zip(["", *words], words, strict=False)
    if any(
        now.isdigit() and was not in ("^", "{") and (now not in "23" or was.lower() not in UNIT) for was, now in pairs
    ):
        return None
    return _write_unit(rest)


def _write_unit(text: str) -> str:
    """Return a unit in one form: ``square meters`` and ``m^2`` are ``m^2``."""
    text = re.sub(r"\s+per\s+", "/", text.strip())
    text = re.sub(r"[{}]|\\cdot", "", text)
    if text.lower() in UNIT:
        return UNIT[text.lower()]
    text = re.sub(r"\b(square|sq\.?|cubic|cu\.?)\s+([A-Za-z]+)", lambda m: f"{m[2]}^{POWERS[m[1].rstrip('.')]}", text)
    text = re.sub(r"\b([A-Za-z]+)\s+(squared|cubed)\b", lambda m: f"{m[1]}^{2 if m[2] == 'squared' else 3}", text)
    text = re.sub(r"([A-Za-z])([23])\b", r"\1^\2", text)
    text = re.sub(r"\s*([/^])\s*", r"\1", text)
    parts = re.split(r"([/^\s])", text)
    written = "".join(UNIT.get(part.lower(), _singular(part.lower())) for part in parts)
    return UNIT.get(written, written)


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
