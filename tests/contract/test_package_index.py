"""The index of packages to install equals the one made from the plugin specs."""

from __future__ import annotations

from importlib.resources import files

from package_index import page

from rllm_core.plugins.discovery import INDEX, PROGRAM


def test_package_index_equals_installed_plugin_specs() -> None:
    assert files(PROGRAM).joinpath(INDEX).read_text(encoding="utf-8") == page(), f"{INDEX} is stale: run `make docs`"
