"""Commands that distributions add to ``rllm`` through the entry-point group ``rllm.commands``."""

from __future__ import annotations

import pytest
from expecting import check_printed, check_values

COMMANDS_OF_PLUGINS = "Commands of plugins:"


def _check_failed(finished, code: str, *values: object) -> None:
    """Check that a command printed an error, and nothing else."""
    assert finished.returncode == 2
    assert finished.stdout == ""
    assert finished.stderr.startswith("error[")
    assert finished.stderr.count("\n") == 1 + ("\nhint: " in finished.stderr)
    check_printed(finished.stderr, code, *values)


def test_plugin_command_receives_words_and_sets_exit_code(rllm, install_command) -> None:
    install_command("third-party", "act")

    finished = rllm("act", "a", "b", "--debug")

    assert rllm("act", "--help").stdout.startswith("Usage: rllm act ")
    assert (finished.returncode, finished.stdout, finished.stderr) == (2, "acting on a b, debug True\n", "")


def test_help_lists_plugin_commands_without_importing_them(rllm, install_command) -> None:
    install_command("third-party", "act", "raise RuntimeError('imported')")

    finished = rllm("--help")

    assert (finished.returncode, finished.stderr) == (0, "")
    core, _, plugins = finished.stdout.partition(COMMANDS_OF_PLUGINS)
    assert "act" not in core.partition("Commands:")[2].split()
    assert "act " in plugins
    assert "From third-party." in plugins


@pytest.mark.long
def test_command_of_blocked_distribution_is_never_imported(rllm, install_command, tmp_path) -> None:
    trace = tmp_path / "imported"
    install_command("third-party", "act", f"open({str(trace)!r}, 'w').close()")

    for block in ("third-party", "Third_Party", "*"):
        blocked = rllm("act", RLLM_BLOCK_PLUGINS=block)
        _check_failed(blocked, "blocked-plugin", "'act'", "third-party", "RLLM_BLOCK_PLUGINS")
    assert COMMANDS_OF_PLUGINS not in rllm("--help", RLLM_BLOCK_PLUGINS="*").stdout
    checked = rllm("plugins", "doctor", RLLM_BLOCK_PLUGINS="*").stdout
    (finding,) = [line for line in checked.splitlines() if "]: third-party 1.0: " in line]
    check_values(finding, "note[blocked-plugin]", "RLLM_BLOCK_PLUGINS")
    assert not trace.exists()
    rllm("act")
    assert trace.exists(), "the same command leaves its trace when it is not blocked"


@pytest.mark.long
def test_core_command_wins_over_plugin_command(rllm, install_command) -> None:
    install_command("third-party", "train", "raise RuntimeError('imported')")

    assert rllm("train", "--help").stdout.startswith("Usage: rllm train")
    assert "From third-party" not in rllm("--help").stdout
    assert "]: third-party 1.0: its command 'train'" in rllm("plugins", "doctor").stdout


@pytest.mark.long
def test_ambiguous_command_names_both_distributions(rllm, install_command) -> None:
    install_command("one", "act")
    install_command("two", "act")

    blocks = ("RLLM_BLOCK_PLUGINS=one", "RLLM_BLOCK_PLUGINS=two")
    _check_failed(rllm("act"), "ambiguous-command", "'act'", "one 1.0", "two 1.0", *blocks)
    assert rllm("act", RLLM_BLOCK_PLUGINS="one").stdout == "acting on , debug False\n"
    (line,) = [line for line in rllm("--help").stdout.splitlines() if line.split()[:1] == ["act"]]
    assert "one and two" in line
    (finding,) = [line for line in rllm("plugins", "doctor").stdout.splitlines() if "]: command act: " in line]
    check_values(finding, "ambiguous-", "one 1.0", "two 1.0")


@pytest.mark.parametrize(
    ("code", "attribute", "reason"),
    [
        ("import a_package_that_is_not_there", "act", "ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)", "act", "SystemExit: 3"),
        ("", "act", "AttributeError: "),
        ("act = 'words'", "act", "'words'"),
        ("", "a b", "cannot be used: "),
    ],
)
def test_unusable_command_names_its_package(rllm, install_command, code: str, attribute: str, reason: str) -> None:
    install_command("bad-plugin", "act", code, attribute)

    _check_failed(rllm("act"), "broken-command", "'act'", "bad-plugin 1.0", reason)


@pytest.mark.long
def test_debug_and_doctor_show_why_command_fails(rllm, install_command) -> None:
    install_command("bad-plugin", "act", "raise RuntimeError('half installed')")

    assert "raise RuntimeError('half installed')" in rllm("act", "--debug").stderr
    checked = rllm("plugins", "doctor", "--debug")
    assert checked.returncode == 1
    check_printed(checked.stdout, "broken-command", "command act: ", "bad-plugin 1.0", "RuntimeError: half installed")
    assert "Traceback" in checked.stdout


def test_nearest_command_may_belong_to_a_plugin(rllm, install_command) -> None:
    install_command("third-party", "perform")

    _check_failed(rllm("perfrom"), "usage-error", "'perfrom'", "'perform'?")
    _check_failed(rllm("zzz"), "usage-error", ", perform")


NOTHING_INSTALLED = """
import sys
import rllm_core.plugins.discovery
rllm_core.plugins.discovery.read_entry_points = tuple
from rllm.cli.main import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("words", "code", "values"),
    [
        (["tinker"], "plugin-not-installed", ["'tinker'", "hint: pip install rllm-tinker-server\n"]),
        (["plugins", "new"], "plugin-not-installed", ["'plugins new'", "hint: pip install rllm-plugin-kit\n"]),
        (["episod"], "usage-error", ["'episode'"]),
    ],
)
def test_first_party_command_without_package_is_known(rllm_from_inside, words, code: str, values) -> None:
    _check_failed(rllm_from_inside(NOTHING_INSTALLED, *words), code, *values)


def test_help_names_distributions_of_missing_commands(rllm_from_inside) -> None:
    told = " ".join(rllm_from_inside(NOTHING_INSTALLED, "--help", COLUMNS="120").stdout.split())

    assert "episode " in told
    assert "pip install rllm-view" in told
    assert "pip install rllm-plugin-kit" in " ".join(
        rllm_from_inside(NOTHING_INSTALLED, "plugins", "--help", COLUMNS="120").stdout.split()
    )


def test_plugins_subcommand_belongs_only_to_that_group(rllm, install_command) -> None:
    install_command("third-party", "act", group="rllm.commands.plugins")

    assert rllm("plugins", "act", "a").stdout == "acting on a, debug False\n"
    assert "From third-party." in rllm("plugins", "--help").stdout
    assert "From third-party." not in rllm("--help").stdout
    _check_failed(rllm("act"), "usage-error", "'act'")


def test_plugins_list_names_commands_and_their_distribution(rllm, install_command) -> None:
    install_command("third-party", "act")

    assert "Command `rllm act` comes from third-party 1.0.\n" in rllm("plugins", "list").stdout
    assert "rllm act" not in rllm("plugins", "list", "--kind", "estimator").stdout
