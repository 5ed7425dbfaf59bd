"""verl's own losses: which are offered, where they can be computed, and what their options are to verl."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry
from rllm_verl.installed import config_search_path
from rllm_verl.verl_losses import NAMES, actor_fields


def test_the_losses_offered_are_those_of_verl_that_nobody_else_has(registry: Registry) -> None:
    (directory,) = config_search_path()
    source = (Path(directory.removeprefix("file://")).parent / "ppo" / "core_algos.py").read_text()
    registered = set(re.findall(r'^@register_policy_loss\("(\w+)"\)', source, re.MULTILINE))
    others = {entry.name for entry in registry.all("loss") if entry.distribution != "rllm-verl"}
    # `bypass_mode` chooses among other losses; rllm.algorithm.rollout_correction does what it is for.
    assert registered - others - {"bypass_mode"} == set(NAMES)
    assert {entry.name for entry in registry.all("loss") if entry.distribution == "rllm-verl"} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_they_are_computed_by_verl_alone(plan: Any, name: str) -> None:
    planned = plan("rllm.profile=cpu", f"rllm.algorithm.loss_fn={name}")
    assert planned.losses.default.plugin.name == name
    with expect_error(ConfigError, "loss-not-supported", f"'{name}'", "backend verl", "backend local"):
        plan("rllm.backend=local", f"rllm.algorithm.loss_fn={name}")


@pytest.mark.parametrize("name", NAMES)
def test_verls_name_of_a_loss_means_that_loss(plan: Any, name: str) -> None:
    planned = plan("rllm.profile=cpu", f"actor_rollout_ref.actor.policy_loss.loss_mode={name}")
    assert planned.losses.default.plugin.name == ("ppo" if name == "vanilla" else name)


@pytest.mark.parametrize("name", ["bypass_mode", "nonsense"])
def test_a_loss_that_neither_has_is_refused(plan: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        plan("rllm.profile=cpu", f"actor_rollout_ref.actor.policy_loss.loss_mode={name}")


def test_the_clip_of_the_core_is_that_of_verls_losses(plan: Any) -> None:
    words = ("rllm.profile=cpu", "rllm.algorithm.eps_clip=0.1", "rllm.algorithm.eps_clip_high=0.3")
    vanilla = plan(*words, "rllm.algorithm.loss_fn={name: vanilla, clip_ratio_c: 4.0}").losses.default
    assert actor_fields(vanilla.params) == {
        "clip_ratio": 0.1,
        "clip_ratio_low": 0.1,
        "clip_ratio_high": 0.3,
        "clip_ratio_c": 4.0,
    }
    geo_mean = plan(*words, "rllm.algorithm.loss_fn=geo_mean").losses
    assert actor_fields(geo_mean.default.params) == {"clip_ratio": 0.1, "clip_ratio_low": 0.1, "clip_ratio_high": 0.3}


def test_values_of_a_critic_are_not_to_be_had(plan: Any) -> None:
    with pytest.raises(ConfigError, match="values"):
        plan("rllm.profile=cpu", "rllm.algorithm.adv_estimator=gae")
