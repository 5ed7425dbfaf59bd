"""Presets of rollout correction are defaults: a user's keys win, and an unknown name is an error."""

from __future__ import annotations

from typing import Any

import pytest

from rllm.config.choices import SECTION
from rllm.config.compose import Composed, compose
from rllm.config.layers import Tier, layer_from_keys
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry


def composed(**keys: Any) -> Composed:
    values = {f"{SECTION}.{name}": value for name, value in keys.items()}
    return compose(Registry.load(), [layer_from_keys(values, "test", Tier.USER)])


def test_preset_sets_other_keys() -> None:
    found = composed(preset="decoupled_token_icepop")
    correction = found.config.rllm.algorithm.rollout_correction
    assert (correction.tis_mode, correction.tis_cap, correction.tis_floor) == ("token", 5.0, 0.5)
    assert found.origin(f"{SECTION}.tis_cap") == "preset decoupled_token_icepop"


def test_preset_key_of_user_wins() -> None:
    found = composed(preset="decoupled_geo_rs_token_tis", tis_cap=2.0, tis_mode=None)
    correction = found.config.rllm.algorithm.rollout_correction
    assert correction.tis_mode is None
    assert correction.reject == {"seq_mean_k1": (0.999, 1.001)}


def test_preset_unknown_name_is_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        composed(preset="decoupled_tokn_is")
    assert caught.value.code == "unknown-choice"
    assert "decoupled_token_is" in caught.value.hint
