"""All errors that users can see. They contain the problem, its location and the next action.

The command line prints ``error[code]: message``, the details, and ``hint: …`` on a separate line. It exits with
`exit_code`. A Python program that fails with one of these errors prints the same text and exits with 1. A traceback
appears only with ``--debug`` or ``RLLM_DEBUG=1``.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any


class RllmError(Exception):
    """Base class of all errors that rllm raises on purpose.

    `code` is a short name of the mistake, such as ``unknown-key``. The same mistake has the same code everywhere.
    `message` contains the problem and its location. `hint` contains the next action. `details` are lines to print
    between them unchanged, such as the end of a log.
    """

    exit_code = 1

    def __init__(self, code: str, message: str, hint: str = "", details: str = "") -> None:
        self.code = code
        self.message = message
        self.hint = hint
        self.details = details
        super().__init__(code, message, hint, details)

    def __str__(self) -> str:
        return format_problem(self.message, self.hint, self.details)

    def printed(self) -> str:
        """Return the lines that the command line, a program and a notebook print."""
        return format_problem(self.message, self.hint, self.details, f"error[{self.code}]")

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython, and so a notebook, shows for an uncaught error."""
        return traceback.format_exception(self) if are_tracebacks_enabled() else [self.printed()]


class ConfigError(RllmError):
    """A configuration value, key or file cannot be used."""

    exit_code = 2


class PluginError(RllmError):
    """A plugin cannot be found, is broken, or conflicts with a different plugin."""

    exit_code = 2


class PipelineError(RllmError):
    """The stages do not fit together, or a stage broke its declaration."""

    exit_code = 2


class RolloutError(RllmError):
    """An episode could not be generated, or lacks what training needs."""


class UnsupportedSamplingError(RolloutError):
    """The engine cannot sample with one of the given `SamplingParams`."""


class RewardError(RllmError):
    """A trajectory has no usable reward."""


class AdvantageError(RllmError):
    """An estimator returned something that is not one finite number per trajectory, step or token."""


class LossError(RllmError):
    """A policy loss returned something that is not one finite number per sampled token."""


class CheckpointError(RllmError):
    """A checkpoint cannot be written, or none can be read."""


class BackendError(RllmError):
    """A backend's service or process rejected a request, failed, or is gone."""


def format_problem(message: str, hint: str = "", details: str = "", label: str = "") -> str:
    """Return the lines of an error, warning or finding: the message after its label, the details, the hint."""
    first = f"{label}: {message}" if label else message
    return "\n".join(filter(None, (first, details, f"hint: {hint}" if hint else "")))


def are_tracebacks_enabled() -> bool:
    """Return True if ``RLLM_DEBUG=1`` enables tracebacks."""
    return os.environ.get("RLLM_DEBUG", "0") not in ("", "0")


@contextmanager
def hide_tracebacks() -> Iterator[None]:
    """Print an `RllmError` that stops a program or Hydra script as the command line does, without a traceback."""
    _replace_excepthook()
    try:
        yield
    except RllmError:
        if _in_hydra_script() and not are_tracebacks_enabled():
            # Hydra prints its own traceback, unless this variable is set.
            os.environ.setdefault("HYDRA_FULL_ERROR", "1")
        raise


def _in_hydra_script() -> bool:
    module = sys.modules.get("hydra.core.hydra_config")
    return module is not None and module.HydraConfig.initialized()


def _replace_excepthook() -> None:
    before = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, RllmError) and not are_tracebacks_enabled():
            print(f"{error.printed()}\nRLLM_DEBUG=1 shows the traceback.", file=sys.stderr)  # noqa: T201
        else:
            before(kind, error, trace)

    if before.__module__ != __name__:
        sys.excepthook = show


@contextmanager
def failures_as(
    error_class: type[RllmError],
    who: str,
    hint: str = "Run the same command with --debug: its traceback names the line.",
) -> Iterator[None]:
    """Run a plugin's code. Convert its exceptions to this error class with the name `who`. Errors of rllm are
    unchanged."""
    try:
        yield
    except RllmError:
        raise
    except (Exception, SystemExit) as error:
        raise error_class("plugin-failed", f"{who} failed: {describe_error(error)}.", hint) from error


def describe_error(error: BaseException) -> str:
    """Return an error with the last line of external code in its traceback: ``KeyError: 'answer' (my_env.py, line
    12)``."""
    place = "" if isinstance(error, RllmError) and error.details else _find_place(error)
    text = f"{error.message} {error.hint}" if isinstance(error, RllmError) else str(error)
    line = " ".join(f"{type(error).__name__}: {text}".split())
    return line.rstrip(": ") + (f" ({place})" if place else "")


def describe_function(function: Any) -> str:
    """Return the name of a function, method or callable object and its place: ``score (rewards.py, line 1)``."""
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]
    return f"{name} ({_place(code.co_filename, code.co_firstlineno)})" if code else name


def _place(file: str, line: int | None) -> str:
    path = Path(file)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}, line {line}"


def _find_place(error: BaseException | None) -> str:
    """Return file and line. Empty if the traceback contains only the core, the program and Python."""
    import sysconfig
    from traceback import walk_tb

    # The line of a plugin that found a user's mistake does not help the user.
    prefixes = ("rllm_",) if isinstance(error, RllmError) else ("rllm_core",)
    names = [name for name in sys.modules if "." not in name and (name == "rllm" or name.startswith(prefixes))]
    ours = [Path(place) for name in names for place in getattr(sys.modules[name], "__path__", ())]
    python = sysconfig.get_path("stdlib")

    def is_ours(file: str) -> bool:
        return any(Path(file).is_relative_to(place) for place in ours)

    while error is not None:
        passed = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
        passed = [(file, line) for file, line in passed if not file.startswith(("<frozen", "<string>"))]
        installed = [place for place in passed if _find_package(place[0])]
        others = [place for place in passed if place not in installed]
        own = [(file, line) for file, line in others if not (is_ours(file) or file.startswith(python))]
        # An installed plugin is external code too, but the packages that it calls are not.
        first = next((_find_package(file) for file, _ in installed if not is_ours(file)), "")
        if own := own or [place for place in installed if _find_package(place[0]) == first]:
            return _place(*own[-1])
        # An error from a thread of the core is raised again, with the original error as its cause.
        error = error.__cause__
    return ""


def _find_package(file: str) -> str:
    """Return the top-level package of an installed file. Empty if the file does not belong to an installed package."""
    parts = Path(file).parts
    place = next((index for index, part in enumerate(parts) if part in ("site-packages", "dist-packages")), None)
    return "" if place is None else parts[place + 1]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"` for the closest known names, or an empty string if none is close."""
    import difflib

    names = list(dict.fromkeys(known))
    of_other_case = [each for each in names if each.lower() == name.lower()]
    close = of_other_case or difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if not close:
        return ""
    return "Did you mean " + " or ".join(repr(match) for match in close) + "?"
