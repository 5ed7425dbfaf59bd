"""Words of a command line mean what they mean to Hydra, or are refused with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from hypothesis import assume, given, strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rllm.config.layers import layers_from_overrides, read_override
from rllm.config.merge import merge_layers
from rllm_core.errors import ConfigError

LOWEST = "++a={b: 1, c: [1], d: {x: 1}}"
VALUES = [
    *("", "''", "1", "-1", "1_000", "1e-4", "1e-4x", "'1'", "inf", "null", "true", "False", "on", "2024-01-01", "text"),
    *("hello world", "http://host:1/x", "/x/y-z_1.yaml", "${a.b}", r"'\${a.b}'", "'a=b'", '"it\'s"', r"a\,b", "'a,b'"),
    *("[]", "[1,2]", "[a b,'c,d',[null]]", "{}", "{x:1}", "{y: {z: [1, '2']}}", "[{x:1}]", "str(3)", "int('3')"),
]


@pytest.fixture(scope="module")
def hydra() -> Iterator[None]:
    with initialize_config_dir(str(Path(__file__).parent), version_base="1.3"):
        yield


def _by_hydra(words: list[str]) -> Any:
    try:
        config = compose(overrides=[LOWEST, *words])
    except (HydraException, OmegaConfBaseException, ValueError):  # ValueError: omegaconf, of a key below a list
        return assume(False)
    return OmegaConf.to_container(config, resolve=False)


def test_values_read_as_hydra_users_expect() -> None:
    for word, value in (
        ("a.b=1", 1),
        ("a.b=1e-4", 0.0001),
        ("a.b='1_0'", "1_0"),
        ("a.b=1e-4x", "1e-4x"),
        ("a.b=010", 10),
        ("a.b=1:30", "1:30"),
        ("a.b=0x1F", 31),
        ("a.b=[007,-01.5,{x:0o17}]", [7, -1.5, {"x": 15}]),
        ("a.b='010'", "010"),
        ("a.b=null", None),
        ("a.b=", ""),
        ("a.b='c=d'", "c=d"),
        ('a.b="it\'s"', "it's"),
        ("a.b={x: {y: [1, 'z']}}", {"x": {"y": [1, "z"]}}),
        ("a.b={}", {}),
        ("a.b=${c.d}", "${c.d}"),
        ("a.b=http://host:1/x", "http://host:1/x"),
        ("a.b= 1 ", 1),
        ("+a.b=1", 1),
        ("++a.b=1", 1),
    ):
        assert read_override(word) == ("a.b", value)
        assert type(read_override(word)[1]) is type(value)


def test_the_group_of_backends_is_a_key() -> None:
    for word in ("rllm/backend=local", "+rllm/backend=local", "rllm.backend=local"):
        assert read_override(word) == ("rllm.backend", "local")


@pytest.mark.parametrize(
    ("word", "value"),
    [
        *((word, "key=value") for word in ("a.b", "", "=1", "=", "  =1", "--steps")),
        ("~a", "delete"),
        ("~a=1", "delete"),
        ("a=1,2", "sweep"),
        ("a=range(1,3)", "sweep"),
        ("rllm/backend=local,other", "sweep"),
        ("db/name=x", "group `db/name`"),
        ("a=1_0", " 1_0,"),
        ("a=[1, 2024_11]", " 2024_11,"),
    ],
)
def test_word_without_meaning_for_single_run_is_rejected(word: str, value: str) -> None:
    with expect_error(ConfigError, "bad-override", f"`{word}`", value):
        read_override(word)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("a=b=c", "mismatched input '=' expecting <EOF>"),
        ("a=[1", "no viable alternative at input '[1'"),
        ("a=x;y", "token recognition error at: ';'"),
        ("a=later(1)", "Unknown function 'later'"),
        ("a={'x y': 1}", "no viable alternative"),
        ("a=" + "[" * 500 + "]" * 500, "recursion"),
        ("a=" + "9" * 5000, "4300 digits"),
    ],
)
def test_unreadable_override_shows_hydra_error_and_quoting_rule(word: str, reason: str) -> None:
    with expect_error(ConfigError, "bad-override", reason) as caught:
        read_override(word)
    assert "goes in quotes" in caught.value.hint
    assert len(caught.value.message) < 400


def test_key_without_text_gets_a_hint() -> None:
    with expect_error(ConfigError, "key-not-text", "`a`", "key 1", "a.1=VALUE"):
        layers_from_overrides(["a={1:2}"])
    [layer] = layers_from_overrides(["a.1=2"])
    assert layer.tree == {"a": {"1": 2}}


merging = st.sampled_from([value for value in VALUES if value != "{}"])
override = st.builds("++{}={}".format, st.sampled_from(["a.b", "a.c", "a.d", "a.d.x", "n.m"]), merging)


@pytest.mark.long
@given(words=st.lists(override, min_size=1, max_size=4))
def test_overrides_have_the_values_that_hydra_gives(hydra: None, words: list[str]) -> None:
    assert merge_layers(layers_from_overrides([LOWEST, *words]), []).tree == _by_hydra(words)


def test_empty_mapping_override_empties_a_mapping() -> None:
    assert merge_layers(layers_from_overrides([LOWEST, "a.d={}"]), []).tree == {"a": {"b": 1, "c": [1], "d": {}}}
