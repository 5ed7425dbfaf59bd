"""Results of a smoke run as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from smoke_sides.running import LIMIT, Outcome
from smoke_sides.scenarios import STEPS, Scenario

TAIL = 20
"""Number of shown last lines of a failed run's log."""
MEMORY = 1 << 30
"""Bytes of a device that another process may allocate or free during a run."""


def problems(scenario: Scenario, outcome: Outcome) -> Iterator[str]:
    """Yield the failures and their likely reasons. Empty if all is as expected."""
    if outcome.returned is None:
        yield f"it has not ended after {LIMIT:g} s: look for what waits in its log"
    elif outcome.returned:
        yield f"it ended with exit code {outcome.returned}"
    if outcome.left:
        yield f"it left processes behind: {', '.join(outcome.left)}"
    if not outcome.returned and len(outcome.steps) != STEPS:
        yield f"it made {len(outcome.steps)} steps, and {STEPS} are expected"
    for expectation in scenario.expectations:
        problem = expectation.problem(outcome.steps)
        if problem is not None:
            yield problem


def memory_left(before: Sequence[int], after: Sequence[int]) -> Iterator[str]:
    """Yield a line for each device on which memory was not freed, from free bytes before and after."""
    for number, (had, has) in enumerate(zip(before, after, strict=True)):
        if had - has > MEMORY:
            yield f"GPU {number} has {(had - has) / (1 << 30):.1f} GiB less free than before: a process still uses it"


def metrics(scenario: Scenario, outcome: Outcome) -> str:
    """Return the values of a run in which all is as expected."""
    return "; ".join(expectation.summary(outcome.steps) for expectation in scenario.expectations)


def last_lines(log: Path) -> str:
    """Return the end of a log, indented."""
    return "\n".join(f"      {line}" for line in log.read_text(errors="replace").splitlines()[-TAIL:])
