"""The resolved configuration in a run's directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error
from hypothesis import example, given, strategies as st

from rllm.config.compose import Composed
from rllm.config.layers import layer_from_file, layers_from_overrides
from rllm.config.resolve import escape
from rllm.config.save import read_config, save_config
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


@pytest.mark.parametrize(
    "words",
    [
        ["rllm.env.name=guess", "model.name=big", "rllm.trainer.seed=3", "rllm.rollout.n=${rllm.trainer.seed}"],
        ["rllm.algorithm.adv_estimator.dialect=verl", "rllm.algorithm.estimator_map={solver: {name: rloo, x: 1}}"],
        [r"rllm.env.env_args={price: '\${amount}', ratio: '1e-4'}", "rllm.agent.trajectory_timeout=1e300"],
        ["training.schedule={name: cosine, end: 0}", "training.betas=[0.5, 1]", "model.cache=elsewhere"],
    ],
)
def test_a_saved_configuration_given_back_is_the_same_configuration(
    composed: Callable[..., Composed], tmp_path: Path, words: list[str]
) -> None:
    first = composed(*layers_from_overrides(words))
    file = save_config(first.build_saved_config(), tmp_path)
    again = composed(layer_from_file(file))
    assert again.tree == first.tree
    assert (again.config, again.backend_config) == (first.config, first.backend_config)
    assert again.origins == first.origins


def test_the_file_is_plain_yaml_in_the_order_of_the_tree(tmp_path: Path) -> None:
    save_config({"a": 1}, tmp_path)
    file = save_config({"b": {"y": 1, "x": [1, "two"]}, "a": None}, tmp_path)
    assert file.read_text() == "b:\n  y: 1\n  x:\n  - 1\n  - two\na: null\n"
    assert [*tmp_path.iterdir()] == [file] == [tmp_path / "config.yaml"]
    file.unlink()
    with expect_error(ConfigError, "file-not-found", "config.yaml"):
        read_config(tmp_path)
