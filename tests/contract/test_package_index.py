"""The index of packages to install equals the one made from the plugin specs and docs/plugins.toml."""

from __future__ import annotations

from importlib.resources import files

from package_index import INDEX as OTHERS, page

from rllm_core.plugins.discovery import INDEX, PROGRAM


def test_package_index_equals_installed_plugin_specs() -> None:
    made = page(OTHERS.read_text(encoding="utf-8"))
    assert files(PROGRAM).joinpath(INDEX).read_text(encoding="utf-8") == made, f"{INDEX} is stale: run `make docs`"
