"""What rllm-estimators offers, and what listing it costs."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.metadata import entry_points
from typing import Any

import pytest
from pydantic import ValidationError

from rllm_core.plugins.first_party import home_of, names_elsewhere
from rllm_core.plugins.validation import check_record
from rllm_estimators import plugin

NAMES = [
    "dr_grpo",
    "gae",
    "gdpo",
    "gigpo",
    "gpg",
    "grpo_length",
    "grpo_passk",
    "hierarchical_grpo",
    "liteppo",
    "maxrl",
    "opo",
    "otb",
    "prpo",
    "reinforce_plus_plus",
    "remax",
    "step_reinforce",
    "tir_otb",
]
TOKEN_BASELINES = {"otb", "tir_otb"}


def test_these_estimators_are_offered(records: Any) -> None:
    assert list(records) == NAMES
    for record in records.values():
        check_record("estimator", record)
        said = record.load().__doc__ + inspect.getmodule(record.load()).__doc__
        assert {"trajectory": "n_traj", "step": "n_step", "token": "n_token"}[record.level] in said


def test_the_core_knows_where_they_are(records: Any) -> None:
    assert sorted(names_elsewhere("estimator")) == NAMES
    assert {home_of("estimator", name) for name in records} == {"rllm-estimators"}
    ours = [name for name in names_elsewhere("loss") if home_of("loss", name) == "rllm-estimators"]
    assert sorted(ours) == sorted(record.name for record in plugin.rllm_losses())


def test_levels_needs_and_losses(records: Any) -> None:
    per_token = {"gae", "reinforce_plus_plus"}
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
    losses = {"ppo", "importance_sampling", "reinforce"}
    assert {record.default_loss for record in records.values()} == losses


def test_options_with_the_name_of_a_shared_key_bound_the_ratio_of_a_token() -> None:
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


def test_losses_that_weigh_by_the_ratio_to_the_sampler_say_so() -> None:
    corrects = {record.name for record in plugin.rllm_losses() if record.corrects_rollouts}
    assert corrects == {"dppo_tv", "dppo_kl", "ipo", "reinforce_kl", "topr", "vespo"}


def test_the_entry_point_has_the_name_of_the_distribution() -> None:
    (found,) = entry_points(group="rllm.plugins", name="rllm-estimators")
    assert found.load() is plugin


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
    ],
)
def test_options_that_make_no_sense_are_refused(records: Any, name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        records[name].params(**options)


def test_listing_the_plugin_imports_neither_torch_nor_numpy() -> None:
    script = (
        "import sys; from rllm_estimators.plugin import rllm_estimators; list(rllm_estimators()); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200)
    modules = set(done.stdout.split())
    assert "rllm_estimators.plugin" in modules
    assert not {"torch", "numpy", "rllm_estimators.centred", "rllm_estimators.statistics"} & modules
