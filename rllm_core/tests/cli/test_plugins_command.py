import json

import pytest

LONG = "an_estimator_with_a_name_too_long_for_eighty_columns_beside_its_summary"


def test_list_shows_installed_plugins_in_full_when_piped(rllm, install) -> None:
    install("third-party")

    finished = rllm("plugins", "list")

    assert (finished.returncode, finished.stderr) == (0, "")
    (line,) = [line for line in finished.stdout.splitlines() if LONG in line]
    assert line.split()[0] == "estimator"
    assert "as simple as an estimator can be. (deprecated)" in line
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
    assert finished.stderr == (
        "warning: plugin bad-plugin is broken: RuntimeError: half installed. `rllm plugins doctor` shows more.\n"
    )


def test_a_blocked_plugin_is_not_imported(rllm, install, tmp_path) -> None:
    trace = tmp_path / "imported"
    install("tracing", f"open({str(trace)!r}, 'w').close()")

    rllm("plugins", "list", RLLM_BLOCK_PLUGINS="*")
    assert not trace.exists()

    rllm("plugins", "list")
    assert trace.exists()


def test_info_shows_facts_and_options(rllm, install) -> None:
    install("third-party")

    printed = rllm("plugins", "info", "estimator", LONG).stdout

    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert lines[0].startswith(f"estimator {LONG}: The reward itself")
    assert "DEPRECATED: choose grpo" in lines
    assert "comes from third-party 1.0" in lines
    assert f"qualified name third-party/{LONG}" in lines
    assert "level token" in lines
    assert "scope group" in lines
    assert "needs values" in lines
    assert "scale number > 0 1.5 Multiplies every advantage." in lines
    assert "target text required" in lines


def test_info_lays_out_what_is_a_list(rllm) -> None:
    """Not in the cells of one table, where it was a paragraph of thousands of letters."""
    printed = rllm("plugins", "info", "backend", "verl", RLLM_BLOCK_PLUGINS="").stdout
    assert max(map(len, printed.splitlines())) < 200
    rows = [line.split() for line in printed.splitlines()]
    for heading, row in (
        ("Acts on:", ["rllm.renderer"]),
        ("Shared keys:", ["trainer.save_freq", "rllm.trainer.save_freq"]),
        ("Idle keys:", ["trainer.resume_mode", "Checkpoints"]),
        ("Idle keys of profiles:", ["cpu", "actor_rollout_ref.rollout.enforce_eager", "It"]),
    ):
        after = rows[rows.index(heading.split()) + 1 :]
        section = after[: after.index([])] if [] in after else after
        assert row in [each[: len(row)] for each in section]


def test_info_on_an_unknown_name_gets_the_nearest_one(rllm) -> None:
    finished = rllm("plugins", "info", "estimator", "grop")

    assert finished.returncode == 2
    assert "Did you mean 'grpo'?" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_doctor_exits_with_1_when_something_cannot_be_used(rllm, install) -> None:
    install("bad-plugin", "raise RuntimeError('half installed')")

    finished = rllm("plugins", "doctor")

    assert finished.returncode == 1
    assert "error: bad-plugin (bad-plugin 1.0): broken: RuntimeError: half installed" in finished.stdout
    assert "RLLM_BLOCK_PLUGINS=bad-plugin" in finished.stdout
    assert "Traceback" not in finished.stdout
    assert "Traceback" in rllm("plugins", "doctor", "--debug").stdout


def test_doctor_counts_what_it_could_not_load(rllm, install) -> None:
    install("unloadable", _with_load("1 / 0"))

    finished = rllm("plugins", "doctor")

    assert finished.returncode == 1
    assert f"error: estimator unloadable/{LONG}: it cannot be loaded: ZeroDivisionError" in finished.stdout


@pytest.mark.parametrize("command", [["plugins"], ["plugins", "list"], ["plugins", "info"], ["plugins", "doctor"]])
def test_every_help_has_examples(rllm, command) -> None:
    finished = rllm(*command, "--help")

    assert finished.returncode == 0
    assert "rllm plugins" in finished.stdout or "RLLM_BLOCK_PLUGINS" in finished.stdout
    assert finished.stdout.count("rllm ") >= 3


def _with_load(expression: str) -> str:
    return f"""
from rllm_core.contracts.estimator import EstimatorPlugin
from rllm_core.contracts.plugin import NoParams
from rllm_core.plugins import hookimpl

@hookimpl
def rllm_estimators():
    return [EstimatorPlugin(name={LONG!r}, summary="S.", params=NoParams, load=lambda: {expression})]
"""


OF_GPUS = """
from rllm_core.contracts import Backend, BackendPlugin, Capabilities, Finding, NoParams
from rllm_core.plugins import hookimpl

def examine():
    yield Finding(severity="error", subject="GPU", problem="there is none", remedy="buy one")

@hookimpl
def rllm_backends():
    yield BackendPlugin(
        name="mine", summary="S.", params=NoParams, load=lambda: Backend, capabilities=Capabilities(),
        examine_gpus=examine,
    )
"""


def test_doctor_asks_backends_about_gpus_when_told_to(rllm, install) -> None:
    install("of-gpus", OF_GPUS)
    assert "error: GPU" not in rllm("plugins", "doctor").stdout

    finished = rllm("plugins", "doctor", "--gpu")

    assert finished.returncode == 1
    assert "error: GPU: there is none\n    to do: buy one" in finished.stdout
