import json

from expecting import check_values

LONG = "an_estimator_with_a_name_too_long_for_eighty_columns_before_its_summary"


def test_list_shows_installed_plugins_in_full_when_piped(rllm, install) -> None:
    install("third-party")

    finished = rllm("plugins", "list")

    assert (finished.returncode, finished.stderr) == (0, "")
    rows = rllm("plugins", "list", "--kind", "estimator").stdout.splitlines()[2:]
    assert {row.split()[0] for row in rows} == {"estimator"}
    (line,) = [line for line in finished.stdout.splitlines() if LONG in line]
    assert line.split()[0] == "estimator"
    assert "estimator can be. (deprecated)" in line
    assert line.endswith("third-party 1.0")
    assert any(line.split()[:2] == ["estimator", "grpo"] for line in finished.stdout.splitlines())


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


def test_mistake_gets_the_nearest_kind_or_name(rllm) -> None:
    for words, meant in (
        (["list", "--kind", "estimators"], "'estimator'?"),
        (["info", "estimator", "grop"], "'grpo'?"),
    ):
        finished = rllm("plugins", *words)
        assert finished.returncode == 2
        assert meant in finished.stderr


def test_broken_plugin_is_named_and_others_work(rllm, install) -> None:
    install("bad-plugin", "raise RuntimeError('half installed')")
    install("third-party")

    finished = rllm("plugins", "list")

    assert finished.returncode == 0
    assert LONG in finished.stdout
    warning, hint = finished.stderr.splitlines()
    assert warning.startswith("warning: plugin bad-plugin ")
    check_values(warning, "RuntimeError: half installed")
    assert hint.startswith("hint: `rllm plugins doctor`")


def test_help_has_examples(rllm) -> None:
    for words in (["list"], ["info"], ["doctor"]):
        printed = rllm("plugins", *words, "--help").stdout
        assert printed.count("rllm plugins") >= 3, words


def test_info_shows_facts_and_options(rllm, install) -> None:
    install("third-party")
    lines = [" ".join(line.split()) for line in rllm("plugins", "info", "estimator", LONG).stdout.splitlines()]
    assert lines[0].startswith(f"estimator {LONG}: The reward itself")
    assert {
        "DEPRECATED: choose grpo",
        "comes from third-party 1.0",
        f"qualified name third-party/{LONG}",
        "level token",
        "scope group",
        "needs values",
        "scale number > 0 1.5 Multiplies every advantage.",
        "target text required",
    } <= {*lines}


def test_info_lays_out_lists(rllm) -> None:
    """Cells of one table would make a paragraph of thousands of letters."""
    printed = rllm("plugins", "info", "backend", "verl", RLLM_BLOCK_PLUGINS="").stdout
    assert max(map(len, printed.splitlines())) < 200
    rows = [line.split() for line in printed.splitlines()]
    for heading, row in (
        ("Config keys:", ["rllm.renderer"]),
        ("Shared keys:", ["trainer.save_freq", "rllm.trainer.save_freq"]),
        ("Unused keys:", ["trainer.resume_mode", "Set"]),
        ("Unused keys by profile:", ["cpu", "actor_rollout_ref.rollout.enforce_eager", "Remove"]),
    ):
        after = rows[rows.index(heading.split()) + 1 :]
        section = after[: after.index([])] if [] in after else after
        assert row in [each[: len(row)] for each in section]
