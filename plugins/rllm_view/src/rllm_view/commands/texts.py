"""Numbers as the terminal shows them."""

from __future__ import annotations


def figure(value: float | None) -> str:
    """To three decimals; ``-`` for what is not known."""
    return "-" if value is None else f"{value:.3f}"
