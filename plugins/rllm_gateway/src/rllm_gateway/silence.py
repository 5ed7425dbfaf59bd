"""An agent that never calls the gateway seems to train: its rewards count, and no token is trained on."""

from __future__ import annotations

from rllm_core.notices import warn_once

NO_CALL = "the agent made no call of the gateway; does its client have an address of its own?"


class Silence:
    """Watches the first attempts of a run."""

    def __init__(self, attempts: int) -> None:
        """`attempts`: of a step; after so many without a call there is a warning."""
        self._left = attempts

    def note(self, calls: int) -> None:
        """An attempt has ended that asked the gateway so many times."""
        if calls:
            # It knows the way: an attempt without a call is the agent's choice from here on.
            self._left = 0
        if self._left:
            self._left -= 1
            if not self._left:
                warn_once(NO_CALL)
