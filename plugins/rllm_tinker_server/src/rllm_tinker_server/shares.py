"""A limit that all owners share, so that none can use it up."""

from __future__ import annotations

from collections import Counter


def has_share(limit: int, used: int, own: int, amount: int) -> bool:
    """True if an owner that uses `own` of all the `used` units may use `amount` more.

    An owner may use as many units as remain free. So one owner gets half, two get a third each, and a part always
    remains for the next owner (Choudhury and Hahne 1998, dynamic queue length thresholds with alpha 1). A request that
    finds nothing in use is accepted in any case.
    """
    return not used or own + amount <= limit - used


class SharedLimit:
    """Units in use, by owner."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used: Counter[str] = Counter()
        self.used = 0

    def has_room(self, owner: str, amount: int) -> bool:
        """Return the result of `has_share` for an owner that uses `amount` units more."""
        return has_share(self._limit, self.used, self._used[owner], amount)

    def add(self, owner: str, amount: int) -> None:
        """Count units as used, also above the limit."""
        self._used[owner] += amount
        self.used += amount

    def remove(self, owner: str, amount: int) -> None:
        """Count units as free."""
        self.add(owner, -amount)
        if not self._used[owner]:
            del self._used[owner]
