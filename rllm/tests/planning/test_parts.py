"""Estimators that consist of other estimators."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import expect_error

from rllm.planning.parts import resolve_parts
from rllm_core.errors import ConfigError
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry

SHARED = {"norm_adv_by_std_in_grpo": False}


def pick(kind: str, choice: Any, where: str) -> Any:
    return resolve_parts(choose(Registry.load(), kind, choice, where, SHARED), pick, where)


def test_mix_has_needs_and_widest_scope_of_parts() -> None:
    mixed = pick("estimator", {"name": "mix", "parts": ["grpo", "gae", "remax"]}, "here")
    assert mixed.plugin.needs == {"values", "step_rewards", "greedy_rewards"}
    assert mixed.plugin.scope == "role"
    assert pick("estimator", {"name": "mix", "parts": ["grpo", "remax"]}, "here").plugin.scope == "group"


def test_parts_receive_values_of_shared_keys() -> None:
    mixed = pick("estimator", {"name": "mix", "parts": ["grpo"]}, "here")
    assert mixed.params.parts[0]["norm_adv_by_std_in_grpo"] is False


@pytest.mark.parametrize(
    ("part", "code"), [("grpoo", "unknown-plugin"), ({"name": "rae", "decy": 0.5}, "unknown-option")]
)
def test_wrong_part_is_rejected_with_its_place(part: Any, code: str) -> None:
    with expect_error(ConfigError, code, "here.parts[1]"):
        pick("estimator", {"name": "mix", "parts": ["grpo", part]}, "here")
