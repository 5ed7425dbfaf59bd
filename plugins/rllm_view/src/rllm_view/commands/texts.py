"""Numbers as the terminal shows them."""

from __future__ import annotations


def figure(value: float | None) -> str:
    """To three decimals; ``-`` for what is not known."""
    # -0.0 + 0.0 is 0.0: no figure is -0.
    return "-" if value is None else f"{round(value, 3) + 0.0:.3f}"
