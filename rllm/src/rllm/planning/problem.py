"""Problems that checks find, and their conversion to errors and warnings."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from rllm_core.errors import ConfigError, format_problem

Severity = Literal["refused", "unused", "warning"]


@dataclass(frozen=True)
class Problem:
    """One finding about a run that has not started."""

    severity: Severity = field(kw_only=True)
    """``refused``: the run cannot work as configured. ``unused``: a user's value has no effect, which is an error
    unless ``rllm.unused_keys`` is ``warn``. ``warning``: the run works, but perhaps not as intended."""
    code: str
    """Short name of the problem, like the code of an `RllmError`."""
    key: str
    """The config key that causes the problem or solves it. If there are several, the first."""
    text: str
    remedy: str = ""


refused = partial(Problem, severity="refused")
unused = partial(Problem, severity="unused")
warning = partial(Problem, severity="warning")


def settle(problems: Iterable[Problem], unused_keys: Literal["error", "warn"]) -> list[str]:
    """Return the lines of all warnings.

    Raises:
        ConfigError: for the first problem that stops the run. If `problems` is a generator, its traceback
            (``--debug``) ends in the check that found the problem.
    """
    lines = []
    for problem in problems:
        if problem.severity == "refused" or (problem.severity == "unused" and unused_keys == "error"):
            error = ConfigError(problem.code, problem.text, problem.remedy)
            if isinstance(problems, Generator):
                problems.throw(error)
            raise error
        lines.append(format_problem(problem.text, problem.remedy))
    return lines
