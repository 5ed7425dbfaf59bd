"""Numbers and foreign texts as the terminal shows them."""

from __future__ import annotations

import unicodedata

_KEPT = "\n\t"


def figure(value: float | None) -> str:
    """To three decimals; ``-`` for what is not known."""
    return "-" if value is None else f"{value:.3f}"


def harmless(text: str) -> str:
    """A foreign text whose control characters are shown and do nothing: escape sequences, bidi overrides, NUL."""
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character in _KEPT or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character
    return f"\\u{ord(character):04x}" if ord(character) > 0xFF else f"\\x{ord(character):02x}"
