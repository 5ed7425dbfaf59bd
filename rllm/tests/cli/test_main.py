import errno
import os
import subprocess
import sys
import types
from pathlib import Path

import click
import pytest
from expecting import check_one_error, check_printed

from rllm.cli import main as main_module
from rllm.cli.command_groups import LazyCommand
from rllm.cli.main import COMMANDS, main
from rllm.config import missing_packages
from rllm.config.missing_packages import MissingRequirement
from rllm_core import __version__
from rllm_core.errors import ConfigError, RllmError


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch):
    """Makes `rllm act` do what the given function does."""

    def install(act) -> None:
        module = types.ModuleType("acting_command")
        module.act = click.command(act)
        monkeypatch.setitem(sys.modules, "acting_command", module)
        monkeypatch.setitem(main_module.COMMANDS, "act", LazyCommand("acting_command", "act", "Act."))

    monkeypatch.delenv("RLLM_DEBUG", raising=False)
    return install


def _raising(error: BaseException):
    def act() -> None:
        raise error

    return act


def test_help_lists_every_command_with_its_summary(capsys) -> None:
    assert main(["--help"]) == 0

    printed = capsys.readouterr().out
    for name, entry in COMMANDS.items():
        assert f"{name} " in printed
        assert entry.summary in printed


def test_every_listed_command_exists_and_has_help(capsys) -> None:
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        assert f"Usage: rllm {name}" in capsys.readouterr().out


def test_an_unexpected_error_names_packages_outside_the_bounds(command, capsys, monkeypatch) -> None:
    old = MissingRequirement(requirement="pydantic<3,>=2.10.1", name="pydantic", installed="1.10.21")
    monkeypatch.setattr(missing_packages, "outside", lambda of: [old])
    command(_raising(ImportError("cannot import name 'field_validator'")))

    assert main(["act"]) == 1

    shown = capsys.readouterr().err
    check_one_error(shown)
    command_to_run = "pip install 'pydantic<3,>=2.10.1'"
    values = ("ImportError", "'field_validator'", "pydantic<3,>=2.10.1", "1.10.21", command_to_run, "--debug")
    check_printed(shown, "unexpected-error", *values)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["trian"], ["'trian'", "'train'?", "`rllm --help`"]),
        (["plugins", "lst"], ["'lst'", "'list'?", "`rllm plugins --help`"]),
        (["zzz"], ["Commands are ", *COMMANDS]),
        (["plugins", "list", "--jsn"], ["--jsn", "\nhint: Run `rllm plugins list --help`"]),
        (["plugins", "info"], ["'KIND'", "hint: For example: `rllm plugins info estimator grpo`."]),
    ],
)
def test_mistake_in_a_command_has_a_hint(words: list[str], values: list[str], capsys) -> None:
    assert main(words) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    check_one_error(captured.err)
    check_printed(captured.err, "usage-error", *values)


@pytest.mark.parametrize("error_class", [RllmError, ConfigError])
def test_rllm_error_has_exit_code_and_details(command, capsys, error_class) -> None:
    command(_raising(error_class("lamp-off", "Dark.", "Light it.", "  its log:\n    last words")))

    assert main(["act"]) == error_class.exit_code

    captured = capsys.readouterr()
    assert captured.err == "error[lamp-off]: Dark.\n  its log:\n    last words\nhint: Light it.\n"
    assert captured.out == ""


def test_unexpected_error_names_the_debug_flag(command, capsys) -> None:
    command(_raising(ValueError("seven\nis odd")))

    assert main(["act"]) == 1

    check_printed(capsys.readouterr().err, "unexpected-error", "ValueError: seven is odd.\n", "bug", "--debug")


def test_error_of_operating_system_is_no_bug(command, capsys) -> None:
    for number in (errno.ENAMETOOLONG, errno.ENOSPC, errno.EACCES, errno.EMFILE):
        command(_raising(OSError(number, os.strerror(number), "some/path")))
        assert main(["act"]) == 1
        printed = capsys.readouterr().err
        check_printed(printed, "system-error", f"some/path: {os.strerror(number)}.\nhint: ")
        assert "bug" not in printed


@pytest.mark.parametrize("arguments", [["--debug", "act"], ["act", "--debug"]])
@pytest.mark.parametrize("error", [ValueError("odd"), RllmError("lamp-off", "The lamp is off.")])
def test_debug_shows_the_traceback_wherever_it_stands(command, capsys, arguments, error) -> None:
    command(_raising(error))

    assert main(arguments) == 1

    printed = capsys.readouterr().err
    assert printed.startswith("Traceback")
    assert "in act\n" in printed
    assert "\nerror[" in printed


@pytest.mark.parametrize(("value", "shown"), [("1", True), ("0", False), ("", False)])
def test_debug_is_also_an_environment_variable(command, capsys, monkeypatch, value: str, shown: bool) -> None:
    monkeypatch.setenv("RLLM_DEBUG", value)
    command(_raising(ValueError("odd")))

    main(["act"])

    assert ("Traceback" in capsys.readouterr().err) is shown


def test_words_after_two_dashes_reach_the_command(command, capsys) -> None:
    @click.argument("words", nargs=-1)
    def act(words: tuple[str, ...]) -> None:
        click.echo(" ".join(words))

    command(act)

    assert main(["act", "--debug", "--", "--debug"]) == 0
    assert capsys.readouterr().out == "--debug\n"


def test_what_a_command_returns_is_the_exit_code(command, capsys) -> None:
    for act, exit_code in (
        (lambda: None, 0),
        (lambda: 3, 3),
        (_raising(click.exceptions.Exit(4)), 4),
        (_raising(KeyboardInterrupt()), 130),
        (_raising(click.Abort()), 130),
    ):
        command(act)
        assert main(["act"]) == exit_code
        assert capsys.readouterr().err.strip() == ("interrupted" if exit_code == 130 else "")
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().err
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rllm {__version__}\n"


def test_python_m_rllm_is_rllm(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rllm", "train", "--no-such-flag"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)

    assert done.returncode == 2
    check_printed(done.stderr, "usage-error", "--no-such-flag", "`rllm train --help`")
