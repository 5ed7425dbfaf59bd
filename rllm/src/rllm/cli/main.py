"""The ``rllm`` command: picks the subcommand, and prints a failure without its traceback, with an exit code."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial

import click

from rllm.cli.command_groups import ExtensibleGroup, LazyCommand
from rllm_core import __version__
from rllm_core.errors import RllmError, are_tracebacks_enabled

COMMANDS = {
    "train": LazyCommand("rllm.cli.train", "train", "Train an agent."),
    "eval": LazyCommand("rllm.evaluation.command", "evaluate", "Report pass@1, pass@k and rewards of a model."),
    "config": LazyCommand("rllm.inspection.config_command", "config", "Show, explain and check a configuration."),
    "plugins": LazyCommand("rllm.cli.plugins", "plugins", "List and check installed plugins."),
}

_OF_THE_MACHINE = {
    errno.ENAMETOOLONG: "Use a shorter path or name.",
    errno.ENOSPC: "Free space on this disk, or choose another with rllm.trainer.output_dir=DIRECTORY.",
    errno.EDQUOT: "Free space in your quota, or choose another disk with rllm.trainer.output_dir=DIRECTORY.",
    errno.EACCES: "Change its permissions, or name another path.",
    errno.EPERM: "Change its permissions, or name another path.",
    errno.EROFS: "Name a path on a disk that can be written.",
    errno.ELOOP: "Name a path whose symbolic links do not form a loop.",
    errno.EMFILE: "Raise the limit of open files with `ulimit -n 65536`.",
}
"""Errors of the operating system that are not bugs, with hints for the user."""

INTERRUPTED = 130
"""Exit code of a process ended by Ctrl-C, as shells have it."""


@click.group(
    cls=ExtensibleGroup,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Help for a command: rllm COMMAND --help",
)
@click.version_option(__version__, prog_name="rllm", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show tracebacks. Also allowed after a command, and as RLLM_DEBUG=1.")
def cli(debug: bool) -> None:
    """Reinforcement learning for language agents, built from plugins.

    \b
    Train on an environment, and choose any part by name:
      rllm train guess
      rllm train guess --estimator rloo rllm.trainer.seed=1
    List the available plugins:
      rllm plugins list
      rllm plugins info estimator grpo
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``rllm`` with the given arguments (default: the process's arguments) and return the exit code.

    A command fails by raising an `RllmError`, also if a plugin provides it. With ``--json``, the error is also printed
    as JSON. A command may return its own exit code instead of None. The object of its click context is True if the user
    requested tracebacks.
    """
    shorten_process_end()
    arguments, debug = _take_debug(list(sys.argv[1:] if argv is None else argv))
    fail = partial(_fail, debug=debug, is_json="--json" in arguments)
    try:
        returned = cli.main(arguments, prog_name="rllm", standalone_mode=False, obj=debug)
    except RllmError as error:
        return fail(error)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f"Run `{context.command_path} --help` for its arguments." if context else ""
        if context and not isinstance(error, click.NoSuchOption) and (example := _find_example(context)):
            hint = f"For example: `{example}`. {hint}"
        if isinstance(error, click.NoSuchOption) and "." in error.option_name:
            hint = f"Write {error.option_name.lstrip('-')}=VALUE, without --. {hint}"
        if isinstance(error, click.MissingParameter) and error.param and error.param.name == "run":
            hint += " `rllm runs list` lists your runs."
        usage = RllmError("usage-error", " ".join(error.format_message().split()), hint)
        usage.exit_code = error.exit_code
        return fail(usage)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  (the user gets no traceback)
        if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
            where = f"{str(error.filename)[:200]}: " if error.filename else ""
            return fail(RllmError("system-error", f"{where}{error.strerror}.", _OF_THE_MACHINE[error.errno]))
        problem = " ".join(f"unexpected {type(error).__name__}: {error}".split()).rstrip(" :.") + "."
        hint = _misfit() or "This is a bug, in rllm or in a plugin."
        hint = hint if debug else f"{hint} Add --debug to see where."
        return fail(RllmError("unexpected-error", problem, hint))
    return returned if isinstance(returned, int) else 0


def _find_example(context: click.Context) -> str:
    """Return the first example with arguments in the help of a command. Empty for a group, or without an example."""
    if isinstance(context.command, click.Group):
        return ""
    lines = (line.strip() for line in (context.command.help or "").splitlines())
    return next((line for line in lines if line.startswith(f"{context.command_path} ")), "")


def _misfit() -> str:
    """Return a sentence about packages outside the core's required versions: they can explain an unexpected error."""
    from rllm.config.missing_packages import outside

    unmet = outside("rllm-core")
    if not unmet:
        return ""
    found = " and ".join(f"{each.requirement} ({each.installed} is installed)" for each in unmet)
    line = " ".join(shlex.quote(each.requirement) for each in unmet)
    return f"rllm-core requires {found}. Run: pip install {line}."


def _take_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """Accept ``--debug`` at any place before a bare ``--``."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept = [argument for argument in arguments[:end] if argument != "--debug"]
    asked = len(kept) < end or are_tracebacks_enabled()
    return kept + arguments[end:], asked


def _fail(error: RllmError, *, debug: bool, is_json: bool) -> int:
    if debug:
        click.echo(traceback.format_exc(), err=True)
    click.echo(error.printed(), err=True)
    if is_json:
        import json

        described = {"code": error.code, "message": error.message, "hint": error.hint, "details": error.details}
        click.echo(json.dumps({"error": described}, indent=2))
    return error.exit_code


@cache
def shorten_process_end() -> None:
    """Let this process end without Python's last garbage collections.

    They need up to a minute for a million objects, for example of the packages of an environment. Call this before
    all other functions of `atexit` are registered, because they run in the opposite order.
    """
    atexit.register(_skip_collections)


STDERR = 2
"""Descriptor of the standard error stream, also for code in C."""
_FILES = {io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom}


def _skip_collections() -> None:
    # A collection would close and so flush the files of its objects.
    has_nanobind = False
    for each in gc.get_objects():
        kind = type(each)  # `isinstance` runs code of lazy objects.
        if kind in _FILES:
            with suppress(OSError, ValueError):
                each.flush()
        has_nanobind |= kind.__module__ == "nanobind"
    if has_nanobind:
        # Extensions such as duckdb would print a warning for each object that is not collected.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, STDERR)
    gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
