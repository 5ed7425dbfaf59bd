import json

import pytest
from expecting import check_values

LONG = "an_estimator_with_a_name_too_long_for_eighty_columns_before_its_summary"


def test_list_shows_installed_plugins_in_full_when_piped(rllm, install) -> None:
    install("third-party")

    finished = rllm("plugins", "list")

    assert (finished.returncode, finished.stderr) == (0, "")
    (line,) = [line for line in finished.stdout.splitlines() if LONG in line]
    assert line.split()[0] == "estimator"
    assert "estimator can be. (deprecated)" in line
    assert line.endswith("third-party 1.0")
    assert any(line.split()[:2] == ["estimator", "grpo"] for line in finished.stdout.splitlines())


def test_list_can_be_kept_to_one_kind(rllm, install) -> None:
    install("third-party")

    rows = rllm("plugins", "list", "--kind", "estimator").stdout.splitlines()[2:]

    assert {row.split()[0] for row in rows} == {"estimator"}


def test_list_as_json_is_for_programs(rllm, install) -> None:
    install("third-party")

    entries = json.loads(rllm("plugins", "list", "--json").stdout)

    (entry,) = [entry for entry in entries if entry["distribution"] == "third-party"]
    assert entry == {
        "kind": "estimator",
        "name": LONG,
        "qualified_name": f"third-party/{LONG}",
        "distribution": "third-party",
        "version": "1.0",
        "summary": "The reward itself, times a constant, which is as simple as an estimator can be.",
        "deprecated": "choose grpo",
    }


def test_list_shows_qualified_names_where_two_plugins_share_one(rllm, install) -> None:
    install("one")
    install("two")

    printed = rllm("plugins", "list").stdout

    assert f"one/{LONG}" in printed
    assert f"two/{LONG}" in printed


def test_an_unknown_kind_is_a_usage_error_with_the_nearest_kind(rllm) -> None:
    finished = rllm("plugins", "list", "--kind", "estimators")

    assert finished.returncode == 2
    assert "Did you mean 'estimator'?" in finished.stderr


def test_a_broken_plugin_is_named_and_takes_nothing_else_down(rllm, install) -> None:
    install("bad-plugin", "raise RuntimeError('half installed')")
    install("third-party")

    finished = rllm("plugins", "list")

    assert finished.returncode == 0
    assert LONG in finished.stdout
    warning, hint = finished.stderr.splitlines()
    assert warning.startswith("warning: plugin bad-plugin ")
    check_values(warning, "RuntimeError: half installed")
    assert hint.startswith("hint: `rllm plugins doctor`")


def test_a_blocked_plugin_is_not_imported(rllm, install, tmp_path) -> None:
    trace = tmp_path / "imported"
    install("tracing", f"open({str(trace)!r}, 'w').close()")

    rllm("plugins", "list", RLLM_BLOCK_PLUGINS="*")
    assert not trace.exists()

    rllm("plugins", "list")
    assert trace.exists()


@pytest.mark.parametrize("command", [["plugins"], ["plugins", "list"]])
def test_every_help_has_examples(rllm, command) -> None:
    finished = rllm(*command, "--help")

    assert finished.returncode == 0
    assert "rllm plugins" in finished.stdout or "RLLM_BLOCK_PLUGINS" in finished.stdout
    assert finished.stdout.count("rllm ") >= 3
