"""What packages ship: the core's YAML files and those of backends, composed by Hydra."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error
from pydantic import BaseModel, Field

from rllm.config import packaged
from rllm.config.compose import Composed
from rllm.config.keys import fill_defaults
from rllm.config.layers import Layer, Tier
from rllm.config.packaged import base_layer, packaged_layers, search_path_entries
from rllm_core.errors import ConfigError
from rllm_core.notices import forget_warnings
from rllm_core.plugins.registry import Registry

AddBackend = Callable[..., Path]
Compose = Callable[..., Composed]
HEADER = "# @package _global_\n"


def _layer(registry: Registry, name: str) -> Layer:
    base, own = packaged_layers(registry.get("backend", name).plugin)
    assert base == base_layer()
    return own


def test_backend_layer_has_only_its_own_values(registry: Registry, add_backend: AddBackend) -> None:
    add_backend("far", HEADER + "rllm: {backend: far, rollout: {n: 4, n_val: 1}}\nmodel: {name: big}\n")
    tree = {"rllm": {"backend": "far", "rollout": {"n": 4}}, "model": {"name": "big"}}
    assert _layer(registry, "far") == Layer("backend far", tree, Tier.PACKAGED)
    assert packaged_layers(registry.get("backend", "needy").plugin) == [base_layer()], "it has no file"


def test_file_may_omit_backend_and_interpolate_user_values(add_backend: AddBackend, composed: Compose) -> None:
    add_backend("far", HEADER + "model: {name: '${rllm.trainer.project_name}'}\n")
    result = composed({"rllm": {"backend": "far", "trainer": {"project_name": "mine"}}})
    assert (result.config.rllm.backend, result.tree["model"]["name"]) == ("far", "mine")
    assert result.origins["model.name"] == "backend far"


def test_file_may_include_others_by_defaults_list(registry: Registry, add_backend: AddBackend) -> None:
    text = "defaults:\n  - /schedules@training: cosine\n  - _self_\ntraining:\n  betas: [0.5, 0.9]\n"
    directory = add_backend("far", HEADER + text)
    (directory / "schedules").mkdir()
    (directory / "schedules" / "cosine.yaml").write_text("betas: [0, 0]\nschedule: {name: cosine, end: 0.1}\n")
    training = {"betas": [0.5, 0.9], "schedule": {"name": "cosine", "end": 0.1}}
    assert _layer(registry, "far").tree == {"rllm": {"backend": "far"}, "training": training}


def test_file_may_include_files_of_other_packages(
    registry: Registry, add_backend: AddBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = tmp_path / "upstream_package"
    upstream.mkdir()
    (upstream / "__init__.py").touch()
    (upstream / "trainer.yaml").write_text("training: {learning_rate: 3e-4}\nmodel: {name: theirs}\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = HEADER + "defaults: [/trainer@_global_, _self_]\nmodel: {name: ours}\n"
    add_backend("far", text, config_search_path=(f"pkg://{upstream.name}",))
    assert _layer(registry, "far").tree == {
        "rllm": {"backend": "far"},
        "training": {"learning_rate": 3e-4},
        "model": {"name": "ours"},
    }


def test_chosen_backend_file_applies_among_equal_names(add_backend: AddBackend, composed: Compose) -> None:
    for distribution in ("first", "second"):
        add_backend("far", f"{HEADER}model: {{name: of_{distribution}}}\n", distribution=distribution)
        result = composed({"rllm": {"backend": f"{distribution}/far"}})
        assert result.tree["model"]["name"] == f"of_{distribution}"


@pytest.mark.parametrize(
    ("text", "code", "value"),
    [
        (HEADER + "model: ]", "yaml-error", "far.yaml, line 2, column 8: "),
        (HEADER + "defaults: [nowhere]\n", "bad-backend-config", "Could not load 'rllm/backend/nowhere'"),
        (HEADER + "- 1\n- 2\n", "bad-backend-config", "'far'"),
        (HEADER + "rllm: {rollout: 5}\n", "wrong-value", "`rllm.rollout` is 5 (from backend far)"),
        (HEADER + "model: {nmae: x}\n", "unknown-key", "`model.nmae` from backend far"),
        ("model: {name: big}\n", "bad-backend-config", "`# @package _global_`"),
    ],
)
def test_broken_file_of_chosen_backend_is_config_error(
    add_backend: AddBackend, composed: Compose, text: str, code: str, value: str
) -> None:
    add_backend("far", text)
    with expect_error(ConfigError, code, value):
        composed({"rllm": {"backend": "far"}})


def test_missing_or_misplaced_file_is_named(add_backend: AddBackend, composed: Compose, backend_yaml: Path) -> None:
    add_backend("far", "", config_yaml=lambda: backend_yaml)
    with expect_error(ConfigError, "bad-backend-config", "local.yaml", "rllm/backend/far.yaml"):
        composed({"rllm": {"backend": "far"}})
    backend_yaml.unlink()
    with expect_error(ConfigError, "bad-backend-config", "'local'", "backend/local.yaml", "Reinstall"):
        composed()


def test_the_broken_file_of_another_backend_stops_nobody(
    add_backend: AddBackend, composed: Compose, backend_yaml: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreadable() -> Path:
        raise RuntimeError("no such resource")

    forget_warnings()
    add_backend("far", "", config_yaml=lambda: backend_yaml)
    add_backend("farther", "", config_yaml=unreadable)
    add_backend("farthest", "model: ]", config_search_path=("pkg://a_package_that_fails_at_import.conf",))
    assert composed().config.rllm.backend == "local"
    assert capsys.readouterr().err == ""


def test_scripts_find_usable_backends_and_warn_of_others(
    add_backend: AddBackend,
    registry: Registry,
    backend_yaml: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    forget_warnings()
    monkeypatch.setattr(Registry, "load", lambda **_: registry)
    directory = add_backend("far", "model: ]")
    add_backend("farther", "", config_yaml=lambda: backend_yaml)
    assert search_path_entries() == [
        ("rllm-core", f"file://{packaged.DIRECTORY}"),
        ("backend local", f"file://{backend_yaml.parents[2]}"),
        ("backend far", f"file://{directory}"),
    ]
    assert "backend farther " in capsys.readouterr().err


def test_scripts_search_packages_only_for_chosen_backend(
    add_backend: AddBackend, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Registry, "load", lambda **_: registry)
    add_backend("far", HEADER, config_search_path=("pkg://upstream",))
    for words, is_found in (
        ([], False),
        (["+rllm/backend=far", "rllm.rollout.n=3"], True),
        (["rllm/backend=far", "rllm/backend=local"], False),
    ):
        monkeypatch.setattr(sys, "argv", ["script.py", *words])
        assert (("far", "pkg://upstream") in search_path_entries()) is is_found


class _Inner(BaseModel):
    rate: float = 0.5
    place: Path = Path("here")


class _Outer(BaseModel):
    needed: int
    inner: _Inner
    either: _Inner | dict[str, int] | None = None
    given: int = Field(3, alias="class")


def test_fill_defaults_adds_and_returns_missing_keys() -> None:
    class Either(BaseModel):
        one: _Inner | _Outer | None = None

    assert fill_defaults({"one": {"needed": 1}}, Either) == [], "the section has several models"
    tree: dict[str, Any] = {"inner": {"rate": 1.0}, "either": {"place": "there"}}
    assert set(fill_defaults(tree, _Outer)) == {("inner", "place"), ("either", "rate"), ("class",)}
    assert tree == {"inner": {"rate": 1.0, "place": "here"}, "either": {"place": "there", "rate": 0.5}, "class": 3}
