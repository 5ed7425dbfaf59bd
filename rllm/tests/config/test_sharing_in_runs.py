"""A composed configuration of a backend that shares keys with the core."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error

from rllm.config.compose import Composed
from rllm.config.layers import Tier, layer_from_file
from rllm.config.saved_config import save_config
from rllm_core.errors import ConfigError

Compose = Callable[..., Composed]
CLIPS = ["rllm.algorithm.eps_clip", "rllm.algorithm.eps_clip_high"]
NATIVE_CLIPS = ["actor.clip_ratio", "actor.clip_ratio_low", "actor.clip_ratio_high"]


def _values(composed: Composed, keys: list[str]) -> list[Any]:
    return [composed.value(key) for key in keys]


def test_without_user_values_core_defaults_apply_without_nulls(run_foreign: Compose) -> None:
    result = run_foreign()
    assert result.tree["trainer"] == {"total_epochs": 10, "total_training_steps": None}
    assert result.value("actor.kl_loss_coef") == 0
    assert result.config.rllm.algorithm.warmup_steps_ratio == 0.1
    assert _values(result, CLIPS + NATIVE_CLIPS) == [0.2, None, 0.2, 0.2, 0.2]
    assert result.warnings == ()
    assert result.by_user == {"rllm.backend"}


@pytest.mark.parametrize(
    ("words", "core", "native", "warned"),
    [
        (["rllm.algorithm.eps_clip_high=0.4"], [0.2, 0.4], [0.2, 0.2, 0.4], 0),
        (["actor.clip_ratio=0.3"], [0.3, None], [0.3, 0.3, 0.3], 1),
        (["actor.clip_ratio_high=0.4"], [0.2, 0.4], [0.2, 0.2, 0.4], 1),
        (["actor.clip_ratio=0.3", "actor.clip_ratio_low=0.1"], [0.3, None], [0.3, 0.3, 0.3], 2),
        (["actor.clip_ratio=0.3", "rllm.algorithm.eps_clip=0.1"], [0.1, None], [0.1, 0.1, 0.1], 1),
        (["rllm.algorithm.eps_clip=0.3", "actor.clip_ratio_high=0.3"], [0.3, None], [0.3, 0.3, 0.3], 0),
    ],
)
def test_clipping_is_one_setting_of_five_keys(
    run_foreign: Compose, words: list[str], core: list[Any], native: list[Any], warned: int
) -> None:
    result = run_foreign(*words)
    assert _values(result, CLIPS) == core
    assert _values(result, NATIVE_CLIPS) == native
    assert len(result.warnings) == warned


def test_interpolations_see_the_agreed_value(run_foreign: Compose) -> None:
    result = run_foreign("actor.kl_loss_coef=0.3", "sampling.val.temperature=${rllm.algorithm.kl_beta}")
    assert result.config.sampling.val.temperature == 0.3
    result = run_foreign("rllm.algorithm.kl_beta=${sampling.val.top_p}", "sampling.val.top_p=0.5")
    assert result.value("actor.kl_loss_coef") == 0.5
    assert result.origins["actor.kl_loss_coef"] == "command line, by rllm.algorithm.kl_beta"
    other = run_foreign("rllm.algorithm.kl_beta=0.3", "sampling.val.temperature=${actor.kl_loss_coef}")
    assert other.config.sampling.val.temperature == 0.3


def test_derived_keys_follow_core_unless_user_sets_them(run_foreign: Compose) -> None:
    result = run_foreign("data.train_batch_size=10", "rllm.rollout.n=${data.train_batch_size}")
    assert result.value("actor.mini_batch_size") == 25
    assert result.origins["actor.mini_batch_size"] == "data.train_batch_size and rllm.rollout.n, by derivation"
    assert "actor.mini_batch_size" not in result.by_user
    assert run_foreign("actor.mini_batch_size=3", "data.train_batch_size=10").value("actor.mini_batch_size") == 3


@pytest.mark.parametrize(
    ("word", "code", "values"),
    [
        ("data.train_batch_size=many", "wrong-value", ["`actor.mini_batch_size`", "data.train_batch_size"]),
        ("data=5", "wrong-value", ["`data` is 5 (from command line)", "a mapping"]),
        ("actor=5", "not-a-mapping", ["`actor` is 5 (from command line)", "`actor."]),
    ],
)
def test_value_without_meaning_for_shared_key_is_error(
    run_foreign: Compose, word: str, code: str, values: list[str]
) -> None:
    with expect_error(ConfigError, code, *values):
        run_foreign(word)


def test_resumed_run_may_change_a_fallback_key(run_foreign: Compose, tmp_path: Path) -> None:
    saved = layer_from_file(
        save_config(run_foreign("rllm.algorithm.eps_clip=0.3").build_saved_config(), tmp_path), tier=Tier.SAVED
    )
    result = run_foreign(saved, "rllm.algorithm.eps_clip=0.1", "data.train_batch_size=6")
    assert _values(result, CLIPS + NATIVE_CLIPS) == [0.1, None, 0.1, 0.1, 0.1]
    assert result.value("actor.mini_batch_size") == 12
    assert result.warnings == ()
