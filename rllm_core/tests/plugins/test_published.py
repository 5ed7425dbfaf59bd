"""Packages of other authors in the index: names that are not installed get the package and the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from expecting import expect_error
from plugin_site import Site

from rllm_core.errors import PluginError
from rllm_core.plugins import discovery
from rllm_core.plugins.registry import Registry

ENTRY = {"summary": "Medians.", "extras": {}, "on_gpus": [], "without_gpu": "", "repository": ""}
INDEX = {
    "rllm-median": {**ENTRY, "version": "0.2", "offers": {"estimator": {"median": "", "midrange": ""}}},
    "rllm-other": {**ENTRY, "version": "1.0", "offers": {"estimator": {"median": ""}}, "options": "--index-url x"},
    "rllm-estimators": {**ENTRY, "version": "9.0", "offers": {"estimator": {"impostor": ""}}},
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the file of `rllm plugins refresh`, which lists the packages of `INDEX`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = Path(discovery.refreshed_index_path())
    file.parent.mkdir()
    file.write_text(json.dumps(INDEX))
    discovery.read_refreshed_packages.cache_clear()
    yield file
    discovery.read_refreshed_packages.cache_clear()


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("median", "rllm-median 0.2"),
        ("rllm-other/median", "rllm-other 1.0"),
        ("RLLM_Median/midrange", "rllm-median 0.2"),
    ],
)
def test_name_of_published_package_has_install_command(cache: Path, name: str, package: str) -> None:
    index = " --index-url x" if name.startswith("rllm-other") else ""
    command = f"rllm plugins install {package.partition(' ')[0]}{index}"
    with expect_error(PluginError, "plugin-not-installed", package, command):
        Registry.load(allow=[]).get("estimator", name)


def test_name_of_newer_version_has_upgrade_command(cache: Path, site: Site) -> None:
    site.install_estimator("rllm-median", "median", version="0.1")

    with expect_error(PluginError, "plugin-not-installed", "rllm-median 0.2", "rllm plugins upgrade rllm-median"):
        site.load().get("estimator", "midrange")


def test_published_package_cannot_pass_for_ours(cache: Path) -> None:
    assert "rllm-estimators" not in discovery.read_published_packages()


def test_damaged_file_of_refresh_is_reported(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for damage in ("{", "[]", '{"x": 1}', '{"x": {}}', '{"x": {"summary": "", "stars": 5}}'):
        cache.write_text(damage)
        discovery.read_refreshed_packages.cache_clear()
        assert discovery.read_published_packages() == {}
    assert capsys.readouterr().err.count(str(cache)) == 1
