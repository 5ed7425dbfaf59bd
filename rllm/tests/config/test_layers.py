"""Making layers of files, of command-line words and of dotted keys."""

from __future__ import annotations

import datetime
import os
from collections import OrderedDict
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expecting import expect_error
from hypothesis import example, given, strategies as st

from rllm.config.layers import Layer, Tier, layer_from_file, layer_from_keys, layers_from_overrides
from rllm_core.errors import ConfigError


def _file(directory: Path, text: str) -> Path:
    file = directory / "my.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_file_layer_is_named_by_its_path(tmp_path: Path) -> None:
    file = _file(tmp_path, "rllm:\n  backend: local\n")
    assert layer_from_file(file) == Layer(str(file), {"rllm": {"backend": "local"}})


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "---\n"])
def test_an_empty_file_is_an_empty_layer(tmp_path: Path, text: str) -> None:
    assert layer_from_file(_file(tmp_path, text)).tree == {}


def test_numbers_in_files_read_as_in_hydra(tmp_path: Path) -> None:
    tree = layer_from_file(_file(tmp_path, "a: 1e-4\nb: 2024-01-01\nc: '1e-4'\n")).tree
    assert tree == {"a": 0.0001, "b": "2024-01-01", "c": "1e-4"}


@pytest.mark.parametrize("kind", ["pipe", "device", "huge"])
def test_config_file_without_end_is_rejected(tmp_path: Path, kind: str) -> None:
    file = Path("/dev/zero") if kind == "device" else tmp_path / "my.yaml"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "huge":
        with file.open("wb") as sparse:
            sparse.truncate(1 << 40)
    with expect_error(ConfigError, "config-too-large" if kind == "huge" else "file-unreadable", f"`{file}`"):
        layer_from_file(file)


def test_path_without_a_readable_file_is_rejected(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 5000)
    for file, *error in (
        (tmp_path / "nowhere.yaml", "file-not-found", "nowhere.yaml"),
        (tmp_path, "not-a-file"),
        (long, "file-unreadable", "too long"),
    ):
        with expect_error(ConfigError, *error):
            layer_from_file(file)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a: 1\nb: ]\n", ("yaml-error", "my.yaml, line 2, column 4: ")),
        ("a: 1\na: 2\n", ("yaml-error", "2", "1")),
        ("a: !!int x", ("yaml-error", "YAML error in")),
        ("a: \x01", ("yaml-error", "YAML error in")),
        ("- 1\n- 2", ("not-a-mapping", "my.yaml", "a list")),
        ("a: " + "[" * 3000, ("nested-too-deeply", "64")),
        ("a: &x\n  b: *x\n", ("nested-too-deeply", "64")),
        ("a:\n  1: x\n", ("key-not-text", "`a`", "my.yaml")),
        ('a: {b: "x\\0y"}\n', ("not-text", "`a.b`", "my.yaml")),
        ("a: 9223372036854775808\n", ("bad-value-type", "`a`", "my.yaml", "63")),
        ("a: [!!binary aGk=]\n", ("bad-value-type", "`a.0`", "my.yaml")),
        (b"a: \xff", ("not-utf8", "my.yaml", "byte 3")),
    ],
)
def test_file_that_is_no_configuration_is_rejected(tmp_path: Path, text: str | bytes, error: tuple[str, ...]) -> None:
    file = tmp_path / "my.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with expect_error(ConfigError, *error):
        layer_from_file(file)


class Word(StrEnum):
    ONE = "one"


@pytest.mark.parametrize(
    "value", [datetime.date(2024, 1, 1), (1, 2), {1, 2}, object(), b"x", np.float64(1), Word.ONE, OrderedDict()]
)
def test_layer_accepts_only_plain_values(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"`a` \(from here\) is of type"):
        Layer("here", {"a": value})


def test_layer_rejects_invalid_unicode_and_numbers_too_large() -> None:
    with expect_error(ConfigError, "not-text", "`a`"):
        Layer("here", {"a": "\udcff"})
    assert Layer("here", {"a": [2**63 - 1, -(2**63) + 1]}).tree
    with expect_error(ConfigError, "bad-value-type", "`a`", "63"):
        Layer("here", {"a": 2**63})


@given(text=st.text() | st.text(alphabet="ab:-[]{}&*!|>%@#,?'\" \n\t01e.~=<"))
@example(text="a: 2001-01-01 00:00:99")
@example(text="? [1]\n: 2")
@example(text="a: 9" + "9" * 5000)
def test_any_text_is_layer_or_config_error(tmp_path: Path, text: str) -> None:
    try:
        tree = layer_from_file(_file(tmp_path, text)).tree
    except ConfigError as error:
        assert "my.yaml" in error.message
    else:
        assert all(isinstance(key, str) for key in tree)


def test_each_override_is_a_separate_layer_in_order() -> None:
    layers = layers_from_overrides(["a.b=1", "+a.b=2"])
    assert layers == [Layer("command line", {"a": {"b": value}}, Tier.COMMAND_LINE) for value in (1, 2)]


def test_files_and_python_default_to_user_tier(tmp_path: Path) -> None:
    assert layer_from_file(_file(tmp_path, "a: 1")).tier is Tier.USER
    assert layer_from_keys({"a": 1}, "here").tier is Tier.USER
    saved = layer_from_file(_file(tmp_path, "a: 1"), tier=Tier.SAVED, origin="backend local")
    assert (saved.tier, saved.origin) == (Tier.SAVED, "backend local")


def test_dotted_keys_become_nested_mappings() -> None:
    layer = layer_from_keys({"rllm.workflow.name": "x", "rllm.rollout.n": 2, "data": {"a": 1}}, "environment guess")
    tree = {"rllm": {"workflow": {"name": "x"}, "rollout": {"n": 2}}, "data": {"a": 1}}
    assert layer == Layer("environment guess", tree)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": 1, "a.b": 2}, ("duplicate-key", "`a.b`")),
        ({"a..b": 1}, ("bad-key", "`a..b`")),
        ({3: 1}, ("bad-key", "`3`")),
        ({"a.b": (1,)}, ("bad-value-type", "`a.b`")),
    ],
)
def test_dotted_keys_that_contradict_each_other_are_refused(values: dict[Any, Any], message: tuple[str, ...]) -> None:
    with expect_error(ConfigError, *message):
        layer_from_keys(values, "here")
