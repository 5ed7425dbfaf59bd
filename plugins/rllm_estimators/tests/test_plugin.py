"""What rllm-estimators offers, and what listing it costs."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rllm_estimators import plugin

TOKEN_BASELINES = {"otb", "tir_otb"}


def test_levels_needs_and_losses(records: Any) -> None:
    per_token = {"gae", "mix", "reinforce_plus_plus"}
    assert {name for name, record in records.items() if record.level == "token"} == per_token | TOKEN_BASELINES
    assert {name for name, record in records.items() if record.level == "step"} == {"gigpo", "step_reinforce"}
    assert {name: set(record.needs) for name, record in records.items() if record.needs} == {
        "gae": {"values", "step_rewards"},
        "gdpo": {"reward_components"},
        "gigpo": {"step_rewards"},
        "reinforce_plus_plus": {"step_rewards"},
        "remax": {"greedy_rewards"},
        "step_reinforce": {"step_rewards"},
        **{name: {"old_logprobs", "sum_pi_squared"} for name in TOKEN_BASELINES},
    }
    losses = {"a2po", "ppo", "importance_sampling", "reinforce"}
    assert {record.default_loss for record in records.values()} == losses


def test_options_named_as_shared_keys_bound_token_ratios() -> None:
    losses = {record.name: record.params.model_fields for record in plugin.rllm_losses()}
    clipped = {"cispo", "clip_cov", "fipo"}
    for key in ("eps_clip", "eps_clip_high"):
        assert {name for name, options in losses.items() if key in options} == clipped
    defaults = {
        "gspo": {"sequence_eps_clip": 3e-4, "sequence_eps_clip_high": 4e-4},
        "gmpo": {"log_ratio_clip": 0.4, "log_ratio_clip_high": None},
        "dppo_tv": {"max_divergence": 0.2, "max_divergence_high": None, "clip_ratio_c": 20.0, "kl_tau": 0.0},
        "dppo_kl": {"max_divergence": 0.2, "max_divergence_high": None, "clip_ratio_c": 20.0, "kl_tau": 0.0},
    }
    for name, expected in defaults.items():
        assert {option: field.default for option, field in losses[name].items()} == expected


def test_losses_that_correct_rollouts_declare_it() -> None:
    corrects = {record.name for record in plugin.rllm_losses() if record.corrects_rollouts}
    assert corrects == {"dppo_tv", "dppo_kl", "ipo", "reinforce_kl", "topr", "vespo"}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dr_grpo", {"dialect": "rllm"}),
        ("gpg", {"f_norm": 0}),
        ("gdpo", {"weights": {"a": "many"}}),
        ("gae", {"lam": 1.5}),
        ("gae", {"gamma": -0.1}),
        ("reinforce_plus_plus", {"lam": 1.0}),
        ("opo", {"dialect": "verl"}),
        ("otb", {"tis_mode": "row"}),
        ("otb", {"tis_cap": 0}),
        ("remax", {"gamma": 1.0}),
        ("step_reinforce", {"gamma": 1.5}),
        ("gae", {"lam_alpha": 0}),
        ("gigpo", {"step_weight": -1}),
        ("grpo_length", {"weight": -0.1}),
        ("liteppo", {"dialect": "trl"}),
        ("mix", {}),
        ("mix", {"parts": []}),
        ("mix", {"parts": ["grpo"], "weights": [1.0, 2.0]}),
        ("rae", {"decay": 1.0}),
        ("spo", {"retention": 0}),
    ],
)
def test_options_that_make_no_sense_are_refused(records: Any, name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        records[name].params(**options)
