"""When a key that nothing acts on says what happens anyway."""

from __future__ import annotations

from typing import Any

import pytest

from rllm.config.unused import same_value


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [(1, 1.0, True), (0, False, False), (True, 1, False), (None, None, True), ("a", "b", False)],
)
def test_values_are_the_same_where_yaml_means_the_same(one: Any, other: Any, same: bool) -> None:
    assert same_value(one, other) is same
