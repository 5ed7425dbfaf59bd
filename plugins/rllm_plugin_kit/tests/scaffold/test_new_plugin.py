"""What `rllm plugins new` writes, says and refuses. That it works is tested in tests/e2e/test_scaffold.py."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from expecting import check_printed, check_values
from packaging.requirements import Requirement

from rllm.cli.main import main
from rllm_plugin_kit.scaffold.kinds import TEMPLATES
from rllm_plugin_kit.scaffold.naming import names_for
from rllm_plugin_kit.scaffold.package import render

TOOLS = {"__pycache__", ".pytest_cache", ".ruff_cache", ".mypy_cache"}


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files_in(directory: Path) -> dict[str, str]:
    """Path to contents of what people wrote; tools leave their own there."""
    paths = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return {path.as_posix(): (directory / path).read_text() for path in paths if not TOOLS & set(path.parts)}


def test_the_next_three_commands_are_printed(capfd: pytest.CaptureFixture[str], empty_directory: Path) -> None:
    (empty_directory / "some directory").mkdir()
    (empty_directory / "some directory/chess").mkdir()  # an empty directory is as good as none

    main(["plugins", "new", "rllm-chess", "--kind", "environment", "--into", "some directory/chess"])

    assert capfd.readouterr().out.splitlines()[-4:] == [
        "Next:",
        "  pip install -e './some directory/chess[test]'",
        "  pytest 'some directory/chess'",
        "  rllm train chess",
    ]


@pytest.mark.parametrize(
    ("distribution", "module", "plugin"),
    [
        ("my-estimator", "my_estimator", "my_estimator"),
        ("rllm-median", "rllm_median", "median"),
        ("rllm-pass-at-k", "rllm_pass_at_k", "pass_at_k"),
        ("rllm-3d", "rllm_3d", "rllm_3d"),
        ("rllm-off", "rllm_off", "rllm_off"),
    ],
)
def test_inner_names_follow_from_the_distribution_name(distribution: str, module: str, plugin: str) -> None:
    names = names_for(distribution, "estimator")

    assert (names.distribution, names.module, names.plugin) == (distribution, module, plugin)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("My_Estimator", ": my-estimator."),
        ("my estimator!", ": my-estimator."),
        ("3d", " my-estimator."),
        ("-", " my-estimator."),
        ("rllm-core", "my-rllm-core"),
        ("rllm-estimators", "my-rllm-estimators"),
        ("lambda", "'lambda'"),
        ("yes", "'yes'"),
        ("statistics", "rllm-statistics"),
        ("numpy", "module numpy"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(name: str, said: str, empty_directory: Path, capfd: Any) -> None:
    assert main(["plugins", "new", "--", name]) == 2

    assert said in capfd.readouterr().err
    assert not list(empty_directory.iterdir())


def test_what_is_in_a_directory_is_never_touched(empty_directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (empty_directory / "notes.txt").write_text("mine")

    for directory in (".", "notes.txt"):
        assert main(["plugins", "new", "my-estimator", "--into", directory]) == 2
        check_printed(capfd.readouterr().err, "directory-in-use", f"{directory} is ", "--into DIRECTORY")
    assert files_in(empty_directory) == {"notes.txt": "mine"}


def test_an_unknown_kind_is_refused_with_all_kinds(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "new", "my-estimator", "--kind", "estimators"]) == 2

    error = capfd.readouterr().err
    assert "'estimators'" in error
    assert all(f"'{kind}'" in error for kind in TEMPLATES)


def test_name_of_another_plugin_is_written_qualified(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "new", "rllm-grpo"]) == 0

    printed = capfd.readouterr()
    assert printed.err.startswith("warning: ")
    check_values(printed.err, "rllm-core", "estimator 'grpo'", "rllm-grpo/grpo")
    assert printed.out.splitlines()[-1] == "  rllm train guess --estimator rllm-grpo/grpo"
    assert "adv_estimator: {name: rllm-grpo/grpo, strength: 2.0}" in Path("rllm-grpo/README.md").read_text()


@pytest.mark.long
def test_written_files_are_formatted_and_pass_lint(empty_directory: Path) -> None:
    for kind in TEMPLATES:
        for name in (f"my-{kind}", "rllm-x", f"my-length-aware-{kind}"):
            main(["plugins", "new", name, "--kind", kind, "--into", f"{kind}/{name}"])

    for words in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *words, "--no-cache", "."]
        finished = subprocess.run(command, cwd=empty_directory, capture_output=True, text=True)
        assert finished.returncode == 0, finished.stdout


@pytest.mark.parametrize("kind", TEMPLATES)
def test_badge_and_entry_point_match_the_package(kind: str) -> None:
    files = render(names_for(f"my-{kind}", kind), kind, f"my_{kind}")
    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert (project["name"], project["entry-points"]["rllm.plugins"]) == (
        f"my-{kind}",
        {f"my-{kind}": f"my_{kind}.plugin"},
    )
    workflow = yaml.safe_load(files[".github/workflows/contract.yml"])
    badge = files["README.md"].splitlines()[2]
    assert badge.startswith(f"[![{workflow['name']}](https://github.com/OWNER/my-{kind}/actions/workflows/contract.yml")
    (job,) = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step][-2:] == ["rllm plugins doctor", "pytest"]
    assert {"uses": "actions/setup-python@v5", "with": {"python-version": "${{ matrix.python }}"}} in job["steps"]


def test_workflow_tests_the_classified_pythons_and_cores() -> None:
    files = render(names_for("my-loss", "loss"), "loss", "my_loss")
    project = tomllib.loads(files["pyproject.toml"])["project"]
    (job,) = yaml.safe_load(files[".github/workflows/contract.yml"])["jobs"].values()
    matrix = job["strategy"]["matrix"]

    pythons = [name.rpartition(" ")[2] for name in project["classifiers"] if "Python :: 3." in name]
    assert (matrix["python"], project["requires-python"]) == (pythons, f">={pythons[0]}")
    (core,) = {Requirement(text).specifier for text in project["dependencies"] if text.startswith("rllm-core")}
    lowest, newest = matrix["core"]
    assert newest == ""
    assert lowest.removeprefix("==") in core
    assert f">={lowest.removeprefix('==').removesuffix('.0')}" in str(core)
    assert any("rllm-core${{ matrix.core }}" in step.get("run", "") for step in job["steps"])


def test_release_needs_no_password_and_signs_its_files() -> None:
    files = render(names_for("my-loss", "loss"), "loss", "my_loss")
    release = yaml.safe_load(files[".github/workflows/release.yml"])
    publish = release["jobs"]["publish"]

    assert release["permissions"] == {"contents": "read"}
    assert publish["permissions"] == {"id-token": "write", "attestations": "write", "contents": "read"}
    used = [step["uses"].partition("@")[0] for step in publish["steps"]]
    assert used[1:] == ["actions/attest-build-provenance", "pypa/gh-action-pypi-publish"]
    assert "secrets" not in files[".github/workflows/release.yml"]
    assert f"environment `{publish['environment']}`" in files["README.md"].replace("\n", " ")


def test_dependabot_updates_packages_and_actions() -> None:
    files = render(names_for("my-loss", "loss"), "loss", "my_loss")
    updates = yaml.safe_load(files[".github/dependabot.yml"])["updates"]
    assert {update["package-ecosystem"] for update in updates} == {"pip", "github-actions"}


def test_links_of_the_package_name_its_repository() -> None:
    files = render(names_for("my-loss", "loss"), "loss", "my_loss")
    urls = tomllib.loads(files["pyproject.toml"])["project"]["urls"]
    assert urls["Homepage"] == "https://github.com/OWNER/my-loss"
    assert all(url.startswith(urls["Homepage"]) for url in urls.values())
