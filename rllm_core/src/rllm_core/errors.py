"""Every error a user can meet: what is wrong, where, and what to do next.

The command line prints these as one paragraph and exits with `exit_code`, and so does a program that they end; a
traceback appears only with ``--debug`` or ``RLLM_DEBUG=1``.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType


class RllmError(Exception):
    """Base of all errors raised on purpose.

    `message` says what is wrong and where; `hint` says what to do next.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        super().__init__(f"{message} {hint}".strip())

    def _render_traceback_(self) -> list[str]:
        """What IPython, and so notebooks, show where nothing catches it."""
        return traceback.format_exception(self) if tracebacks_wanted() else [f"error: {self}"]

    def __reduce__(self) -> tuple[type[RllmError], tuple[str, str]]:
        """Message and hint stay apart on the way from another process."""
        return type(self), (self.message, self.hint)


class ConfigError(RllmError):
    """A configuration value, key or file cannot be used."""

    exit_code = 2


class PluginError(RllmError):
    """A plugin cannot be found, is broken, or clashes with another."""

    exit_code = 2


class PipelineError(RllmError):
    """The stages do not fit together, or a stage broke its declaration."""

    exit_code = 2


class RolloutError(RllmError):
    """An episode could not be generated, or lacks what training needs."""


class RewardError(RllmError):
    """A trajectory has no usable reward."""


class AdvantageError(RllmError):
    """An estimator returned something that is not one finite number per trajectory, step or token."""


class LossError(RllmError):
    """A policy loss returned something that is not one finite number per sampled token."""


class CheckpointError(RllmError):
    """A checkpoint cannot be written, or none can be read."""


class BackendError(RllmError):
    """A backend's service or process refused something, failed, or is gone."""


def tracebacks_wanted() -> bool:
    """Whether whoever started this process asked for tracebacks: ``RLLM_DEBUG=1``."""
    return os.environ.get("RLLM_DEBUG", "0") not in ("", "0")


def end_with_a_paragraph() -> None:
    """Let a program that an `RllmError` ends show its message alone, as the command line does."""
    before = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, RllmError) and not tracebacks_wanted():
            print(f"error: {error} RLLM_DEBUG=1 shows where.", file=sys.stderr)  # noqa: T201  (the program's last word)
        else:
            before(kind, error, trace)

    if before.__module__ != __name__:
        sys.excepthook = show


@contextmanager
def failures_as(
    error_class: type[RllmError], who: str, hint: str = "Mend it; add --debug to see where it failed."
) -> Iterator[None]:
    """Run a plugin's code: what it raises becomes an error of this class that names `who`; ours stay as they are."""
    try:
        yield
    except RllmError:
        raise
    except (Exception, SystemExit) as error:
        raise error_class(f"{who} failed: {type(error).__name__}: {error}.", hint) from error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for the closest known names, or an empty string when none is close."""
    import difflib

    names = list(dict.fromkeys(known))
    of_other_case = [each for each in names if each.lower() == name.lower()]
    close = of_other_case or difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if not close:
        return ""
    return "Did you mean " + " or ".join(repr(match) for match in close) + "?"
