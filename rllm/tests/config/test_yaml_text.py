"""YAML of configurations: numbers and words of YAML 1.2, and a bound on the size."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from expecting import check_error
from omegaconf import OmegaConf

from rllm.config.yaml_text import LONGEST, MOST_VALUES, as_yaml, read_yaml
from rllm_core.errors import ConfigError


def test_plain_scalars_are_those_of_yaml_1_2() -> None:
    for text, value in (
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("1_000", 1000),
        ("1_000_000.5", 1000000.5),
        ("1_0", "1_0"),
        ("1:30", "1:30"),
        ("0b1", "0b1"),
        ("-.inf", float("-inf")),
        ("5.", 5.0),
        ("1e", "1e"),
        ("yes", "yes"),
        ("NO", "NO"),
        ("on", "on"),
        ("~", None),
        ("", None),
        ("!!float 3", 3.0),
    ):
        found = read_yaml(f"a: {text}", "my.yaml")["a"]
        assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "text", ["010", "1:30", "no", "1e-4", "0o17", "0x1F", "1_000", "null", "2024-01-01", "<<", "=", ""]
)
def test_ambiguous_text_is_quoted_for_all_readers(text: str) -> None:
    written = as_yaml({"a": text})
    readers: list[Any] = [lambda each: read_yaml(each, ""), yaml.safe_load, lambda each: dict(OmegaConf.create(each))]
    assert [reader(written) for reader in readers] == [{"a": text}] * 3


def test_mappings_may_be_merged() -> None:
    assert read_yaml("a: &x {b: 1}\nc: {<<: *x, d: 2}", "my.yaml")["c"] == {"b": 1, "d": 2}


def _bomb(levels: int) -> str:
    lines = ["a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        (_bomb(4), None),
        (_bomb(9), MOST_VALUES),
        (_bomb(900), ""),
        ("\n".join(f"k{index}: 1" for index in range(MOST_VALUES)), MOST_VALUES),
        ("a: " + "x" * LONGEST, LONGEST),
        ("[" * (LONGEST - 1), ""),
        ("- " * (LONGEST // 2), ""),
        ("a: &x\n  b: *x\n", None),
    ],
)
def test_too_large_text_is_rejected_before_it_loads(text: str, limit: int | str | None) -> None:
    if limit is None:
        assert read_yaml(text, "my.yaml")
        return
    with pytest.raises(ConfigError, match=r"my\.yaml") as caught:
        read_yaml(text, "my.yaml")
    if limit:
        check_error(caught.value, "config-too-large", limit)
    else:
        assert caught.value.code in ("config-too-large", "nested-too-deeply")
