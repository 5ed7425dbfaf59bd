"""`rllm plugins install`, `upgrade` and `uninstall` in an environment that sees the packages of this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest
from expecting import check_printed, expect_error
from small_wheels import write_estimator_wheel, write_wheel

from rllm.builtin.plugin_packages.installer import Installer, PackageChange, find_installer, requirement_name
from rllm.cli.main import main
from rllm_core import __version__
from rllm_core.errors import RllmError

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def make_environment(directory: Path) -> Path:
    """Make an environment without packages. Return its directory of packages."""
    venv.create(directory, with_pip=False, symlinks=True)
    return Path(sysconfig.get_path("purelib", vars={"base": str(directory), "platbase": str(directory)}))


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    directory = tmp_path / "wheels"
    write_estimator_wheel(directory, "rllm-median", "0.1", "median")
    write_estimator_wheel(directory, "rllm-median", "0.2", "midrange")
    write_estimator_wheel(directory, "rllm-median", "9.0", "newest", requires=["rllm-core>=9"])
    write_estimator_wheel(directory, "rllm-ahead", "1.0", "ahead", requires=["rllm-core>=9"])
    write_wheel(directory, "rllm-broken", "1.0", "raise RuntimeError('half written')")
    return directory


@pytest.fixture
def plugins(tmp_path: Path, wheels: Path, cache: Path) -> Run:
    """Runs ``rllm plugins`` with pip in a new environment that also sees the packages of this one."""
    environment = tmp_path / "environment"
    site = make_environment(environment)
    here = sysconfig.get_path("purelib")
    (site / "packages_of_tests.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "RLLM_"))}
    environ |= {"PIP_CONFIG_FILE": os.devnull, "COLUMNS": "200"}

    def run(verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        source = [] if verb in ("list", "uninstall") else ["--no-index", "--find-links", str(wheels)]
        command = [str(environment / "bin" / "python"), "-m", "rllm", "plugins", verb, *words, *source]
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200)

    return run


def _cells(printed: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines()]


@pytest.mark.long
def test_install_upgrade_and_uninstall_show_the_names(plugins: Run) -> None:
    installed = plugins("install", "rllm-median<0.2")
    assert ["rllm-median", "-", "0.1"] in _cells(installed.stdout)
    assert ["added", "estimator", "median", "rllm-median"] in _cells(installed.stdout)
    assert "median" in plugins("list", "estimator").stdout.split()

    upgraded = plugins("upgrade", "rllm-median")
    assert ["rllm-median", "0.1", "0.2"] in _cells(upgraded.stdout), "version 9 needs a newer core"
    assert ["removed", "estimator", "median", "rllm-median"] in _cells(upgraded.stdout)
    assert ["added", "estimator", "midrange", "rllm-median"] in _cells(upgraded.stdout)

    assert plugins("install", "rllm-median").stdout.startswith("Nothing to change")

    removed = plugins("uninstall", "RLLM_median")
    assert ["removed", "estimator", "midrange", "rllm-median"] in _cells(removed.stdout)
    assert "midrange" not in plugins("list", "estimator").stdout.split()


def test_dry_run_installs_nothing(plugins: Run) -> None:
    planned = plugins("install", "rllm-median==0.1", "--dry-run")

    assert ["rllm-median", "-", "0.1"] in _cells(planned.stdout)
    assert ["added", "estimator", "median", "rllm-median"] in _cells(planned.stdout), "from the keywords"
    assert "nothing was changed" in planned.stderr
    assert "median" not in plugins("list", "estimator").stdout.split()


def test_changes_as_json_have_versions_and_names(plugins: Run) -> None:
    changes = json.loads(plugins("install", "rllm-median==0.1", "--dry-run", "--json").stdout)

    assert changes["packages"] == [{"package": "rllm-median", "before": "", "after": "0.1"}]
    plugin = {"change": "added", "kind": "estimator", "name": "median", "package": "rllm-median"}
    assert changes["plugins"] == [plugin]


def test_package_for_other_core_is_rejected(plugins: Run) -> None:
    rejected = plugins("install", "rllm-ahead", "rllm-median==0.1")

    assert rejected.returncode == 1
    check_printed(rejected.stderr, "wrong-version", "rllm-ahead", "rllm-core>=9", "upgrade rllm")
    assert "rllm-median" not in plugins("list").stdout, "nothing is installed"


def test_unknown_package_is_an_error(plugins: Run) -> None:
    check_printed(plugins("install", "rllm-nowhere").stderr, "install-failed", "rllm-nowhere", "rllm plugins search")
    check_printed(plugins("install", "rllm-envz").stderr, "install-failed", "Did you mean 'rllm-envs'")


@pytest.mark.long
def test_package_without_usable_plugin_is_reported(plugins: Run) -> None:
    finished = plugins("install", "rllm-broken")

    assert finished.returncode == 1
    assert ["rllm-broken", "-", "1.0"] in _cells(finished.stdout)
    assert "half written" in finished.stderr
    assert "`rllm plugins doctor`" in finished.stderr


@pytest.mark.parametrize(
    ("words", "code", "values"),
    [
        (["uninstall", "rllm-local"], "plugin-required", ["rllm-local", "by rllm", "RLLM_BLOCK_PLUGINS=rllm-local"]),
        (["uninstall", "rllm"], "not-a-plugin", ["rllm", "pip uninstall rllm"]),
        (["uninstall", "click"], "not-a-plugin", ["click", "pip uninstall click"]),
        (["uninstall", "rllm-nowhere"], "plugin-not-installed", ["rllm-nowhere"]),
        (["uninstall", "rllm-lokal"], "plugin-not-installed", ["rllm-lokal", "Did you mean 'rllm-local'"]),
        (["install", "textarena"], "not-a-plugin", ["textarena", "rllm plugins install rllm-envs"]),
        (["install", "./absent[extra]"], "file-not-found", ["./absent[extra]"]),
        (["upgrade", "rllm-nowhere"], "plugin-not-installed", ["rllm plugins install rllm-nowhere"]),
    ],
)
def test_names_that_cannot_change_are_rejected(capsys, words: list[str], code: str, values: list[str]) -> None:
    assert main(["plugins", *words]) == 2

    check_printed(capsys.readouterr().err, code, *values)


def test_environment_without_pip_uses_uv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rllm.builtin.plugin_packages.installer.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_installer().name == "uv", "next to Python"

    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with expect_error(RllmError, "no-installer", sys.prefix, "ensurepip"):
        find_installer()


def test_uv_resolves_and_installs_like_pip(tmp_path: Path, wheels: Path) -> None:
    site = make_environment(tmp_path / "environment")
    core = write_wheel(tmp_path / "core", "rllm-core", __version__, "")
    ZipFile(core).extractall(site)
    python = str(tmp_path / "environment" / "bin" / "python")
    uv = Installer("uv", (str(Path(sys.executable).with_name("uv")), "pip"), ("--no-progress", "--python", python))
    options = ["--no-index", f"--find-links={wheels}"]

    assert uv.resolve(["rllm-median"], options) == [PackageChange("rllm-median", "0.2", ())]
    with expect_error(RllmError, "wrong-version", "rllm-ahead", "rllm-core>=9"):
        uv.install(["rllm-ahead", "rllm-median"], options)
    assert not (site / "rllm_median.py").exists()
    uv.install(["rllm-median"], options)
    assert (site / "rllm_median.py").exists()
    assert uv.resolve(["rllm-median"], options) == []
    uv.uninstall(["rllm-median"])
    assert not (site / "rllm_median.py").exists()


@pytest.mark.parametrize(
    ("requirement", "name"),
    [("rllm_foo[x]<2", "rllm-foo"), ("rllm.foo", "rllm-foo"), ("rllm-foo @ file:///x", "rllm-foo"), ("./rllm-foo", "")],
)
def test_name_of_a_requirement_is_normalized(requirement: str, name: str) -> None:
    assert requirement_name(requirement) == name
