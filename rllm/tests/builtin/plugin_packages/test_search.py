"""`rllm plugins search` finds plugins of installed packages, of packages of the index, and of refreshed packages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from expecting import check_printed

from rllm.cli.main import main
from rllm_core import __version__
from rllm_core.plugins.discovery import read_index

ENTRY = {"summary": "Medians.", "extras": {}, "on_gpus": [], "without_gpu": ""}


@pytest.fixture(autouse=True)
def refreshed_index(cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    offers = {"estimator": {"median": "The \x1b[2Jmedian."}, "command": {"midrange": "Shows it."}}
    place = {"repository": "https://x.org", "options": "--find-links /wheels"}
    median = {"offers": offers, "version": "0.2", **place}
    cache.write_text(json.dumps({"rllm-median": ENTRY | median, "rllm-silent": ENTRY | {"offers": {}, "version": "3"}}))


def _search(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert main(["plugins", "search", *words, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_search_without_words_lists_the_whole_index(capsys) -> None:
    found = _search(capsys)

    ours = {
        (home, kind, name)
        for home, entry in read_index().items()
        for kind in entry.offers
        for name in entry.offers[kind]
    }
    listed = {(each["distribution"], each["kind"], each["name"]) for each in found}
    assert {each for each in listed if each[0] in ("rllm-median", "rllm-silent")} == {
        ("rllm-median", "estimator", "median"),
        ("rllm-median", "command", "midrange"),
        ("rllm-silent", "package", "rllm-silent"),
    }
    assert ours <= listed


def test_every_word_must_occur(capsys) -> None:
    found = _search(capsys, "ESTIMATOR", "median", "rllm-med")

    assert found == [
        {
            "kind": "estimator",
            "name": "median",
            "summary": "The \\x1b[2Jmedian.",
            "distribution": "rllm-median",
            "version": "0.2",
            "installed": None,
            "repository": "https://x.org",
            "install": "rllm plugins install rllm-median --find-links /wheels",
        }
    ]


def test_table_marks_packages_that_are_not_installed(capsys) -> None:
    main(["plugins", "search", "median"])
    printed = capsys.readouterr().out

    assert "rllm-median 0.2 (not installed)\n" in printed
    assert printed.endswith("rllm plugins install rllm-median --find-links /wheels\n")


def test_installed_package_has_its_version(capsys) -> None:
    (found,) = _search(capsys, "sapo")

    assert found["installed"]
    assert found["version"] is None
    assert found["install"] is None


def test_unknown_command_names_its_package(capsys) -> None:
    assert main(["midrange"]) == 2

    install = "rllm plugins install rllm-median --find-links /wheels"
    check_printed(capsys.readouterr().err, "plugin-not-installed", "'midrange'", "rllm-median 0.2", install)


def test_search_without_result_names_the_next_command(capsys) -> None:
    assert main(["plugins", "search", "no-such-plugin"]) == 0

    printed = capsys.readouterr()
    assert printed.out == "None.\n"
    assert "rllm plugins refresh" in printed.err


def test_search_names_the_closest_word(capsys) -> None:
    assert main(["plugins", "search", "estimator", "mediann"]) == 0

    assert capsys.readouterr().err.startswith("Did you mean 'median'")


@pytest.mark.parametrize(("kind", "name"), [("estimator", "rloo"), ("tracker", "mlflow")])
def test_installed_plugins_are_found_without_index(kind: str, name: str, capsys) -> None:
    (found,) = (each for each in _search(capsys, kind, name) if each["name"] == name)

    assert (found["installed"], found["install"]) == (__version__, None)
