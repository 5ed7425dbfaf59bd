"""Modules of the user that register plugins are imported before any name is looked up."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from expecting import check_error, expect_error

from rllm.config.choices import registry_for
from rllm.config.layers import layer_from_keys
from rllm_core.errors import ConfigError, PluginError
from rllm_core.plugins.registry import Registry, forget_in_process, records_in_process

REGISTERING = """
from rllm_core import register_rllm_adv_estimator

@register_rllm_adv_estimator("NAME")
def estimate(rewards, algorithm_config, **kwargs):
    return rewards, rewards
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Writes a module into the current directory, which is not on the path yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    known = {(record.kind, record.name) for record in records_in_process()}
    written: list[str] = []

    def write(name: str, code: str) -> str:
        (tmp_path / f"{name}.py").write_text(code)
        written.append(name)
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)
    for record in records_in_process():
        if (record.kind, record.name) not in known:
            forget_in_process(record.kind, record.name)


def registry(names: Any) -> Registry:
    return registry_for([layer_from_keys({"rllm.plugins.import_modules": names}, "my.yaml")])


def failure(names: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        registry(names)
    return caught.value


def test_plugin_of_local_module_can_be_chosen(module: Callable[..., str]) -> None:
    name = module("my_estimators", REGISTERING.replace("NAME", "from_my_module"))
    found = registry([name]).get("estimator", "from_my_module")
    assert found.qualified_name == "in-process/from_my_module"
    assert registry([name]).get("estimator", "from_my_module").plugin is found.plugin, "it is imported once"
    with expect_error(PluginError, "bad-plugin-spec", "'My-Own'"):
        registry([module("misnamed", REGISTERING.replace("NAME", "My-Own"))])


def test_path_is_unchanged_without_a_listed_module(module: Callable[..., str]) -> None:
    before = list(sys.path)
    registry([])
    assert sys.path == before
    registry([module("harmless", "")])
    assert sys.path == [str(Path.cwd()), *before]
    registry(["harmless"])
    assert sys.path == [str(Path.cwd()), *before]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import not_installed_anywhere", "No module named 'not_installed_anywhere' (bad_module.py, line 1)"),
        ("raise RuntimeError('no\\nluck.')", "RuntimeError: no luck."),
        ("import sys\nsys.exit(3)", "SystemExit: 3 (bad_module.py, line 2)"),
        ("def (", "SyntaxError: "),
    ],
)
def test_module_that_cannot_be_imported_is_one_paragraph(module: Callable[..., str], code: str, reason: str) -> None:
    error = failure([module("bad_module", code)])
    check_error(error, "plugin-failed", "'bad_module' of `rllm.plugins.import_modules`", reason, "import bad_module")
    assert "\n" not in error.message


def test_a_name_that_is_no_module_is_said(module: Callable[..., str]) -> None:
    module("my_estimators", "")
    for name in ("absent_module", "", ".relative", "my_estimators.py"):
        check_error(failure([name]), "module-not-found", repr(name))
    check_error(failure("my_estimators"), "wrong-value", '`rllm.plugins.import_modules` is "my_estimators"', "a list")
