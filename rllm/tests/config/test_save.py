"""The resolved configuration in a run's directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from expecting import expect_error
from hypothesis import example, given, strategies as st

from rllm.config.saved_config import read_config, save_config
from rllm.config.values import escape
from rllm_core.errors import ConfigError

texts = (st.text() | st.text(alphabet="${}\\ab:#'\"\n?1e-.0xo_")).filter(
    lambda text: text != "???" and "\0" not in text
)
whole_numbers = st.integers(-(2**63) + 1, 2**63 - 1)
scalars = st.none() | st.booleans() | whole_numbers | st.floats(allow_nan=False) | texts
trees = st.dictionaries(
    texts,
    st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)),
    max_size=4,
)


@given(tree=trees)
@example(tree={"a": "1e-4", "b": 1e-4, "c": "2024-01-01", "d": "yes", "e": float("inf"), "1e-4": "null"})
@example(tree={"a": r"\${b}", "b": "${a}", "c": "\\\\${x", "d": ["${oc.env:HOME}"], "e": "\\"})
def test_what_is_read_is_what_was_saved(tmp_path: Path, tree: dict[str, Any]) -> None:
    save_config(escape(tree), tmp_path)
    assert read_config(tmp_path) == tree


def test_file_is_plain_yaml_in_tree_order(tmp_path: Path) -> None:
    save_config({"a": 1}, tmp_path)
    file = save_config({"b": {"y": 1, "x": [1, "two"]}, "a": None}, tmp_path)
    assert file.read_text() == "b:\n  y: 1\n  x:\n  - 1\n  - two\na: null\n"
    assert [*tmp_path.iterdir()] == [file] == [tmp_path / "config.yaml"]
    file.unlink()
    with expect_error(ConfigError, "file-not-found", "config.yaml"):
        read_config(tmp_path)
