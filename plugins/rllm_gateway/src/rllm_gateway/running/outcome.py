"""How an agent's process ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

LAST_LINES = 15
LAST_BYTES = 16_384


@dataclass(frozen=True)
class Outcome:
    """What an agent's process has left."""

    code: int
    """Its exit code; minus the signal that ended it."""
    returned: Any
    """JSON data that the agent returned; None where there is none."""
    last_lines: tuple[str, ...]
    """Of what it wrote, errors included."""

    @property
    def failure(self) -> str:
        """One text about an agent that failed: exit code and last lines."""
        ended = f"exit code {self.code}" if self.code >= 0 else f"signal {-self.code}"
        said = " | ".join(self.last_lines)
        return f"the agent failed with {ended}" + (f"; its last lines: {said}" if said else "; it wrote nothing")


def last_lines(log: Path) -> tuple[str, ...]:
    """The last lines of a log that may be long; none where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LAST_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(line for line in text.splitlines() if line.strip())[-LAST_LINES:]
