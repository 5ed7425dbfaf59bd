"""Making layers of files, of command-line words and of dotted keys."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rllm_core.config.layers import Layer, layer_from_dotted, layer_from_file, layers_from_overrides
from rllm_core.errors import ConfigError

same_folder = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def _file(folder: Path, text: str) -> Path:
    file = folder / "my.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_file_becomes_a_layer_named_by_its_path(tmp_path: Path) -> None:
    file = _file(tmp_path, "rllm:\n  backend: local\n")
    assert layer_from_file(file) == Layer(str(file), {"rllm": {"backend": "local"}})


def test_a_layer_from_a_file_may_have_another_name(tmp_path: Path) -> None:
    assert layer_from_file(_file(tmp_path, "a: 1"), origin="backend local").origin == "backend local"


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "---\n"])
def test_an_empty_file_is_an_empty_layer(tmp_path: Path, text: str) -> None:
    assert layer_from_file(_file(tmp_path, text)).tree == {}


def test_numbers_in_files_read_as_in_hydra(tmp_path: Path) -> None:
    tree = layer_from_file(_file(tmp_path, "a: 1e-4\nb: 2024-01-01\nc: '1e-4'\n")).tree
    assert tree == {"a": 0.0001, "b": "2024-01-01", "c": "1e-4"}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"There is no configuration file `.*nowhere\.yaml`"):
        layer_from_file(tmp_path / "nowhere.yaml")


def test_a_folder_is_refused_as_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder, not a configuration file"):
        layer_from_file(tmp_path)


def test_an_unreadable_path_is_refused_with_the_systems_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: .+ too long"):
        layer_from_file(tmp_path / ("x" * 5000))


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "latin.yaml"
    file.write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match=r"latin\.yaml` is not UTF-8 text \(byte 3\)"):
        layer_from_file(file)


def test_a_yaml_error_names_file_line_and_column(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"YAML error in .*my\.yaml, line 2, column 4: "):
        layer_from_file(_file(tmp_path, "a: 1\nb: ]\n"))


def test_a_key_given_twice_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 2, column 1: found duplicate key a"):
        layer_from_file(_file(tmp_path, "a: 1\na: 2\n"))


@pytest.mark.parametrize(("text", "held"), [("- 1\n- 2", "a list"), ("hello", "only the value 'hello'"), ("3", "3")])
def test_a_file_must_hold_a_mapping(tmp_path: Path, text: str, held: str) -> None:
    with pytest.raises(ConfigError, match=rf"my\.yaml` holds .*{held}; a configuration is a mapping"):
        layer_from_file(_file(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: !!int x", "YAML error in"),
        ("a: !!bool x", "YAML error in"),
        ("a: " + "[" * 3000, "nested too deeply"),
        ("a: &x\n  b: *x\n", "nested deeper than 64 levels, or contains itself"),
        ("a: \x01", "YAML error in"),
        ("a:\n  1: x\n", r"`a` \(from .*my\.yaml\) has the key 1, which is not text"),
        ("yes: 1\n", r"The top level \(from .*my\.yaml\) has the key True"),
        ("a: [!!binary aGk=]\n", r"`a\.0` \(from .*my\.yaml\) is of type bytes"),
    ],
)
def test_what_yaml_allows_and_a_configuration_does_not_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        layer_from_file(_file(tmp_path, text))


@pytest.mark.parametrize("value", [datetime.date(2024, 1, 1), (1, 2), {1, 2}, object(), b"x"])
def test_a_layer_holds_only_plain_values(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"`a` \(from here\) is of type"):
        Layer("here", {"a": value})


def test_a_layer_holds_only_valid_unicode() -> None:
    with pytest.raises(ConfigError, match=r"`a` \(from here\) holds text that is not valid Unicode"):
        Layer("here", {"a": "\udcff"})


@same_folder
@given(text=st.text() | st.text(alphabet="ab:-[]{}&*!|>%@#,?'\" \n\t01e.~=<"))
@example(text="a: 2001-01-01 00:00:99")
@example(text="? [1]\n: 2")
@example(text="a: 9" + "9" * 5000)
def test_any_text_is_a_layer_or_a_config_error(tmp_path: Path, text: str) -> None:
    try:
        tree = layer_from_file(_file(tmp_path, text)).tree
    except ConfigError as error:
        assert "my.yaml" in error.message
    else:
        assert all(isinstance(key, str) for key in tree)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("a.b=1", 1),
        ("a.b=-1", -1),
        ("a.b=1e-4", 0.0001),
        ("a.b=1e-4x", "1e-4x"),
        ("a.b=null", None),
        ("a.b=true", True),
        ("a.b=False", False),
        ("a.b=", ""),
        ("a.b=''", ""),
        ("a.b=text", "text"),
        ("a.b='1'", "1"),
        ("a.b=c=d", "c=d"),
        ("a.b=[1,2]", [1, 2]),
        ("a.b=[]", []),
        ("a.b={x: 1}", {"x": 1}),
        ("a.b={x: {y: [1, z]}}", {"x": {"y": [1, "z"]}}),
        ("a.b={}", {}),
        ("a.b=${c.d}", "${c.d}"),
        ("a.b=http://host:1/x", "http://host:1/x"),
        (" a.b =1", 1),
    ],
)
def test_override_values_read_as_hydra_users_expect(word: str, value: Any) -> None:
    [layer] = layers_from_overrides([word])
    assert layer == Layer("command line", {"a": {"b": value}})
    assert type(layer.tree["a"]["b"]) is type(value)


def test_the_slash_of_hydras_backend_group_is_a_dot() -> None:
    [layer] = layers_from_overrides(["rllm/backend=local"])
    assert layer.tree == {"rllm": {"backend": "local"}}


def test_each_override_is_a_layer_of_its_own_in_order() -> None:
    layers = layers_from_overrides(["a=1", "a=2"], origin="command line")
    assert [layer.tree for layer in layers] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("word", ["a.b", "", "=1", "=", "  =1", "--steps"])
def test_an_override_without_key_or_equals_sign_is_shown_the_right_form(word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        layers_from_overrides([word])
    assert f"`{word}` is not an override." in caught.value.message
    assert "key=value" in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("word", ["a..b=1", ".a=1", "a.=1", "a.b..=1"])
def test_an_override_key_with_an_empty_part_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=r"\(from command line\) is not a key.*names joined by dots"):
        layers_from_overrides([word])


@pytest.mark.parametrize("word", ["+a.b=1", "++a=1", "~a=1"])
def test_hydras_plus_and_tilde_are_refused_by_name(word: str) -> None:
    with pytest.raises(ConfigError, match=rf"starts with `\{word[0]}`, which has no meaning here"):
        layers_from_overrides([word])


@pytest.mark.parametrize("word", ["a={x:1}", "a=[{x:1}]", "a={y: {x:1}}"])
def test_a_colon_without_a_space_is_refused_instead_of_misread(word: str) -> None:
    with pytest.raises(ConfigError, match="needs a space after the colon"):
        layers_from_overrides([word])


def test_a_yaml_error_in_an_override_names_the_word() -> None:
    with pytest.raises(ConfigError, match=r"YAML error in command line, `a=\[1`, line 1, column 3"):
        layers_from_overrides(["a=[1"])


@settings(max_examples=100, deadline=None)
@given(word=st.text() | st.text(alphabet="ab.=[]{}:,'\"$ +~/!&*"))
def test_any_word_is_an_override_or_a_config_error(word: str) -> None:
    try:
        [layer] = layers_from_overrides([word])
    except ConfigError as error:
        assert error.message
    else:
        assert len(layer.tree) == 1


def test_dotted_keys_become_nested_mappings() -> None:
    layer = layer_from_dotted({"rllm.workflow.name": "x", "rllm.rollout.n": 2, "data": {"a": 1}}, "environment guess")
    tree = {"rllm": {"workflow": {"name": "x"}, "rollout": {"n": 2}}, "data": {"a": 1}}
    assert layer == Layer("environment guess", tree)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": 1, "a.b": 2}, r"`a\.b` \(from here\) lies within a key that has a value"),
        ({"a.b": 2, "a": 1}, r"`a` \(from here\) is given twice"),
        ({"": 1}, r"`` \(from here\) is not a key"),
        ({"a..b": 1}, r"`a\.\.b` \(from here\) is not a key"),
        ({3: 1}, r"`3` \(from here\) is not a key"),
        ({"a.b": (1,)}, r"`a\.b` \(from here\) is of type tuple"),
    ],
)
def test_dotted_keys_that_contradict_each_other_are_refused(values: dict[Any, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        layer_from_dotted(values, "here")


def test_making_a_layer_leaves_the_plugins_mapping_alone() -> None:
    values = {"a": {"x": 1}, "a.y": 2}
    layer_from_dotted(values, "here")
    assert values == {"a": {"x": 1}, "a.y": 2}
