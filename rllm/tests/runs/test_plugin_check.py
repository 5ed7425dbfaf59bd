"""Packages of a run that changed are named with their problem, and other packages are not affected."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest
from plugin_site import ESTIMATOR, Site, installed_in
from small_wheels import write_estimator_wheel, write_wheel

from rllm.cli.main import main
from rllm.runs.plugin_check import (
    UsedPackage,
    compare_plugins,
    describe_used_plugins,
    digest_package,
    find_modified_files,
    read_used_packages,
)
from rllm_core.notices import forget_warnings
from rllm_core.plugins.registry import Registry

MEDIAN = "import helper_of_median\n" + ESTIMATOR.replace("{name}", "median")
Change = Callable[[Path], None]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Yield a directory with the installed packages rllm-median and rllm-steady, and the backend local."""
    directory = tmp_path / "site"
    directory.mkdir()
    (directory / "helper_of_median.py").touch()
    monkeypatch.setenv("RLLM_ALLOW_PLUGINS", "rllm-local,rllm-median,rllm-steady,rllm-twin")
    with installed_in(directory, monkeypatch) as made:
        made.modules += ["rllm_median", "rllm_steady", "rllm_twin", "helper_of_median"]
        _install(directory, write_wheel(tmp_path, "rllm-median", "1.0", MEDIAN))
        _install(directory, write_estimator_wheel(tmp_path, "rllm-steady", "1.0", "steady"))
        digest_package.cache_clear()
        yield made
    digest_package.cache_clear()


@pytest.fixture
def run(site: Site, tmp_path: Path) -> Path:
    """Return the directory of a run that used both packages."""
    registry = Registry.load()
    used = [registry.get("estimator", name) for name in ("median", "steady", "grpo")]
    directory = tmp_path / "runs" / "rllm-training" / "before"
    directory.mkdir(parents=True)
    (directory / "plugins.json").write_text(json.dumps(describe_used_plugins(used)))
    return directory


def _install(site: Path, wheel: Path) -> None:
    """Install a wheel over an earlier version."""
    package = wheel.name.partition("-")[0]
    for info in site.glob(f"{package}-*.dist-info"):
        shutil.rmtree(info)
    shutil.rmtree(site / "__pycache__", ignore_errors=True)
    with ZipFile(wheel) as archive:
        archive.extractall(site)


def replace_code(site: Path) -> None:
    _install(site, write_wheel(site.parent, "rllm-median", "1.0", f"{MEDIAN}\nCHANGED = True\n"))


def upgrade(site: Path) -> None:
    _install(site, write_wheel(site.parent, "rllm-median", "2.0", MEDIAN))


def uninstall(site: Path) -> None:
    shutil.rmtree(site / "rllm_median-1.0.dist-info")


def break_import(site: Path) -> None:
    (site / "helper_of_median.py").write_text("raise RuntimeError('half written')\n")


def add_second_package(site: Path) -> None:
    _install(site, write_estimator_wheel(site.parent, "rllm-twin", "3.0", "median"))


def edit_file(site: Path) -> None:
    with (site / "rllm_median.py").open("a") as file:
        file.write("# edited\n")


def rename_plugin(site: Path) -> None:
    _install(site, write_wheel(site.parent, "rllm-median", "1.0", MEDIAN.replace('"median"', '"midrange"')))


CHANGES = [
    (replace_code, {"changed"}, "its code was ", "code of the run, or start a new run"),
    (upgrade, {"wrong-version"}, "2.0 is installed", "rllm plugins install 'rllm-median==1.0'"),
    (uninstall, {"missing"}, "it is not installed", "rllm plugins install 'rllm-median==1.0'"),
    (break_import, {"broken"}, "RuntimeError: half written", "rllm plugins doctor"),
    (add_second_package, {"doubled"}, "estimator 'median' is also in rllm-twin/median", "Write rllm-median/median"),
    (edit_file, {"modified"}, "1 of its files differ from the installed wheel: rllm_median.py", "--force-reinstall"),
    (rename_plugin, {"changed", "missing"}, "it has no estimator 'median' now", "rllm plugins install"),
]


def _forget(site: Site) -> None:
    for module in site.modules:
        sys.modules.pop(module, None)
    digest_package.cache_clear()
    forget_warnings()


@pytest.mark.parametrize(("change", "problems", "reason", "remedy"), CHANGES)
def test_every_change_is_named_with_its_remedy(
    site: Site, run: Path, change: Change, problems: set[str], reason: str, remedy: str
) -> None:
    change(site.directory)
    _forget(site)
    registry = Registry.load()

    found = list(compare_plugins(read_used_packages(run), registry))

    assert {each.problem for each in found} == problems
    assert {each.distribution for each in found} == {"rllm-median"}
    printed = "\n".join(each.lines() for each in found)
    assert reason in printed
    assert any(remedy in line for line in printed.splitlines() if line.startswith("hint: "))
    assert registry.get("estimator", "steady"), "the other package can be used"


def test_package_is_installed_again_from_its_source(site: Site, run: Path) -> None:
    """A package with the same name in an index may be by a stranger."""
    (site.directory / "rllm_median-1.0.dist-info/direct_url.json").write_text('{"url": "file:///home/me/median"}')
    used = [Registry.load().get("estimator", "median")]
    (run / "plugins.json").write_text(json.dumps(describe_used_plugins(used)))
    uninstall(site.directory)
    _forget(site)

    (found,) = compare_plugins(read_used_packages(run), Registry.load())

    assert found.remedy == "Install it from file:///home/me/median, as for the run."


def test_unloadable_plugin_stops_runs_before_they_begin(site: Site, run: Path, capsys) -> None:
    plugin = MEDIAN.replace("lambda: raw", "lambda: __import__('no_such_module')")
    _install(site.directory, write_wheel(site.directory.parent, "rllm-median", "1.0", plugin))
    _forget(site)
    before = (run / "plugins.json").read_text()
    words = ["train", "guess", "--estimator", "median", f"rllm.trainer.output_dir={run.parents[1]}"]

    assert main([*words, "rllm.trainer.experiment_name=before", "--overwrite"]) == 2

    assert "estimator rllm-median/median cannot be loaded: ModuleNotFoundError" in capsys.readouterr().err
    assert (run / "plugins.json").read_text() == before
    assert not (run / "config.yaml").exists()


def test_blocked_package_is_named_with_the_block(site: Site, run: Path) -> None:
    _forget(site)
    blocked = Registry.load(environ={"RLLM_BLOCK_PLUGINS": "rllm-median,rllm"})

    found = list(compare_plugins(read_used_packages(run), blocked))

    assert [(each.problem, each.distribution) for each in found] == [("missing", "rllm-median")]
    assert "'rllm-median' in RLLM_BLOCK_PLUGINS" in found[0].reason


def test_resumed_run_warns_about_each_changed_plugin(site: Site, run: Path, capsys) -> None:
    add_second_package(site.directory)
    replace_code(site.directory)
    before, _, _ = read_used_packages(run)
    _forget(site)
    words = ["train", "guess", "--resume", "--dry-run", f"rllm.trainer.output_dir={run.parents[1]}"]

    main([*words, "rllm.trainer.experiment_name=before"])

    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: plugin of the run")]
    subject = "warning: plugin of the run: rllm-median 1.0 (estimator median) "
    digests = [digest.removeprefix("sha256:")[:12] for digest in (before.digest, digest_package("rllm-median"))]
    assert warnings == [
        f"{subject}changed: its code was {digests[0]} and is now {digests[1]}.",
        f"{subject}doubled: estimator 'median' is also in rllm-twin/median.",
    ]


def test_verify_compares_all_packages_of_a_run(site: Site, run: Path, capsys) -> None:
    assert main(["plugins", "verify", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [(line.split()[0], line.split()[-1]) for line in lines[1:]] == [
        ("rllm-median", "same"),
        ("rllm-steady", "same"),
        ("rllm-core", "same"),
    ]

    uninstall(site.directory)
    _forget(site)
    assert main(["plugins", "verify", str(run), "--json"]) == 1
    (difference,) = json.loads(capsys.readouterr().out)["differences"]
    assert (difference["problem"], difference["distribution"]) == ("missing", "rllm-median")


def test_verify_loads_the_plugins_of_a_run(site: Site, run: Path, capsys) -> None:
    plugin = MEDIAN.replace("lambda: raw", "lambda: __import__('no_such_module')")
    _install(site.directory, write_wheel(site.directory.parent, "rllm-median", "1.0", plugin))
    _forget(site)

    assert main(["plugins", "verify", str(run)]) == 1
    printed = capsys.readouterr().out
    assert "rllm-median 1.0 (estimator median) broken: ModuleNotFoundError: No module named 'no_such_module'" in printed


@pytest.mark.parametrize("directory", [".", "no-such-run"])
def test_verify_needs_a_run(directory: str, tmp_path: Path, capsys) -> None:
    assert main(["plugins", "verify", str(tmp_path / directory)]) == 2

    assert f"error[run-not-found]: {tmp_path / directory} " in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{", '[{"kind": "backend", "name": 3, "distribution": null}]'])
def test_verify_reports_a_damaged_list(content: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "plugins.json").write_text(content)

    assert main(["plugins", "verify", str(tmp_path)]) == 2

    assert f"error[damaged-file]: {tmp_path / 'plugins.json'} " in capsys.readouterr().err


def test_run_without_digests_compares_versions(site: Site) -> None:
    replace_code(site.directory)
    _forget(site)

    used = [UsedPackage("rllm-median", "1.0", "", (("estimator", "median"),))]
    assert list(compare_plugins(used, Registry.load())) == []


def test_pip_and_uv_give_the_same_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = write_estimator_wheel(tmp_path, "rllm-median", "1.0", "median")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet"]
    digests = set()
    for installer in (pip, uv):
        target = tmp_path / Path(installer[0]).name
        subprocess.run([*installer, "--no-deps", "--target", str(target), str(wheel)], check=True)
        digest_package.cache_clear()
        with monkeypatch.context() as patch:
            patch.syspath_prepend(target)
            digests.add(digest_package("rllm-median"))
            assert find_modified_files("rllm-median") == []
    assert len(digests) == 1
    assert "" not in digests


def test_editable_package_has_digest_of_its_sources(site: Site) -> None:
    (site.directory / "rllm_median-1.0.dist-info" / "direct_url.json").write_text('{"dir_info": {"editable": true}}')
    digest_package.cache_clear()
    before = digest_package("rllm-median")
    edit_file(site.directory)
    digest_package.cache_clear()

    assert digest_package("rllm-median") not in (before, "")
