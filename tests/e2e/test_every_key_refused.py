"""A value that no part of a run reads: a user's value stops the run with a reason, any other returns to its default."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from expecting import check_error, check_values

from rllm.config.layers import Layer, Tier, layer_from_keys
from rllm.planning.plan import RunPlan
from rllm_core.contracts.backend import Backend, BackendPlugin, Capabilities
from rllm_core.contracts.engine import EnginePlugin, HostedEngine
from rllm_core.contracts.reward import RewardPlugin
from rllm_core.contracts.stage import StagePlugin
from rllm_core.contracts.workflow import Workflow, WorkflowPlugin
from rllm_core.errors import ConfigError
from rllm_core.pipeline.pipeline import Pipeline
from rllm_core.plugins.registry import Registry
from rllm_core.schema.section import Rejected

from .conftest import plan_of
from .test_every_key import KEYS, RUNS

OTHER_VALUES: dict[str, Any] = {
    **{name: value for settings in RUNS for name, value in settings.items()},
    "rllm.agent.engine_args": {"size": 1},
    "rllm.algorithm.rollout_correction.bypass_mode": True,
    "rllm.algorithm.rollout_correction.preset": "decoupled_token_is",
    "rllm.stepwise_advantage.mode": "per_step",
    "rllm.rollout.engine": "deaf",
    "rllm.reward": ["deaf"],
    "rllm.async_training.fwd_bwd_group_size": 4,
    "rllm.async_training.episode_offload_dir": "elsewhere",
    "rllm.async_training.trajectory_group_offload_dir": "elsewhere",
    "rllm.sandbox": "local",
    "rllm.sdk.proxy.mode": "external",
    "rllm.sdk.proxy.admin_token": "secret",
}
BUDGETS = ("max_hours", "max_tokens", "max_cost", "prices.sampled_per_million", "prices.trained_per_million")
IN_EVERY_RUN = ("rllm.record", "rllm.trainer.prices.per_hour", *(f"rllm.trainer.{name}" for name in BUDGETS))
"""Keys that a tracker or an observer of every run reads, if it is installed."""
BY_PLUGINS = [name for name, key in KEYS.items() if not key.is_read_by_core and name not in IN_EVERY_RUN]
REFUSED = [name for name, key in KEYS.items() if key.mark(Rejected) and key.mark(Rejected).accepted is None]
REDUNDANT = [name for name, key in KEYS.items() if key.mark(Rejected) and key.mark(Rejected).accepted is not None]
SWITCHES = ("enable", "log_episodes")
SWITCHED = [name for name, key in KEYS.items() if key.inherited and key.path[-1] not in SWITCHES]
MASKS = [name for name in SWITCHED if name.startswith("rllm.compact_filtering.") and KEYS[name].default is True]
"""Keys of masks. Without filters nothing is masked, so their other value has no effect."""
NO_READERS = layer_from_keys(
    {"rllm.backend": "deaf", "rllm.workflow.name": "deaf", "rllm.pipeline.stages": ["deaf", "log"]}, "set-up"
)
"""Settings of a run whose plugins read no key. They have no engine, because the backend does not host one."""


@cache
def _registry() -> Registry:
    """Return the installed plugins with a backend and a workflow that read no key."""
    registry = Registry.load()
    can = Capabilities(custom_losses=True, columns=frozenset({"old_logprobs"}))
    common: dict[str, Any] = {"name": "deaf", "summary": "For tests."}
    registry.add(BackendPlugin(load=lambda: Backend, capabilities=can, **common))
    registry.add(WorkflowPlugin(load=lambda: Workflow, **common))
    registry.add(EnginePlugin(load=lambda: HostedEngine, **common))
    registry.add(RewardPlugin(load=lambda: Pipeline, **common))
    reads, writes = frozenset({"tasks"}), frozenset({"episodes"})
    registry.add(StagePlugin(load=lambda: Pipeline, reads=reads, writes=writes, **common))
    return registry


def other_value(name: str) -> Any:
    """Return an allowed value of the key that is not its default."""
    default = KEYS[name].default
    return OTHER_VALUES[name] if name in OTHER_VALUES else not default if isinstance(default, bool) else default + 1


def planned(settings: dict[str, Any], *layers: Layer) -> RunPlan:
    return plan_of(settings, _registry(), layers)


def refusal(settings: dict[str, Any], *layers: Layer) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        planned(settings, *layers)
    return caught.value


@pytest.mark.parametrize("name", [name for name in BY_PLUGINS if name not in MASKS])
def test_users_value_is_rejected_if_unused(name: str) -> None:
    error = refusal({name: other_value(name)}, NO_READERS)
    assert error.message.startswith(f"`{name}")
    check_error(error, "unused-key", "(from the test)")
    assert error.hint


def test_values_of_lower_origin_are_reset_if_unused() -> None:
    lower = layer_from_keys({name: other_value(name) for name in BY_PLUGINS}, "some environment", Tier.ENVIRONMENT)
    plan = planned({}, lower, NO_READERS)
    assert {name: plan.composed.value(name) for name in BY_PLUGINS} == {name: KEYS[name].default for name in BY_PLUGINS}
    assert {plan.composed.origins[name] for name in BY_PLUGINS} == {"default"}
    (warning,) = plan.warnings
    assert warning.startswith("no stage of rllm.pipeline updates the weights")


def test_unused_default_values_are_accepted() -> None:
    plan = planned(
        {name: KEYS[name].default for name in BY_PLUGINS if name not in ("rllm.workflow.name", "rllm.backend")},
        NO_READERS,
    )
    assert len(plan.warnings) == 1, "no stage updates the weights"


def test_reset_of_earlier_runs_value_is_warned_of() -> None:
    saved = layer_from_keys({"rllm.algorithm.eps_clip_high": 0.3}, "runs/one/config.yaml", Tier.SAVED)
    plan = planned({"rllm.algorithm.loss_fn": "reinforce"}, saved)
    assert plan.composed.value("rllm.algorithm.eps_clip_high") is None
    assert plan.composed.tiers["rllm.algorithm.eps_clip_high"] is Tier.PACKAGED
    (warning,) = plan.warnings
    check_values(warning, "`rllm.algorithm.eps_clip_high` is 0.3 (from runs/one/config.yaml)", "default")


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_value_is_refused_with_the_reason(name: str) -> None:
    value = {name: other_value(name)}
    error = refusal(value)
    assert error.message.startswith(f"`{name}` is ")
    assert error.message.endswith("(from the test), which is not supported.")
    assert error.hint == KEYS[name].mark(Rejected).reason
    plan = planned({}, layer_from_keys(value, "some environment", Tier.ENVIRONMENT))
    assert plan.composed.value(name) == KEYS[name].default


@pytest.mark.parametrize("name", REDUNDANT)
def test_users_value_that_always_applies_is_warned_of(name: str) -> None:
    mark = KEYS[name].mark(Rejected)
    assert planned({name: True}).warnings == (f"`{name}` is true (from the test). {mark.reason}",)
    saved = layer_from_keys({name: True}, "an earlier run", Tier.SAVED)
    assert planned({}, saved).warnings == ()


@pytest.mark.parametrize("name", [name for name in SWITCHED if name not in MASKS])
def test_key_of_disabled_section_is_rejected(name: str) -> None:
    error = refusal({name: other_value(name)})
    if name in REFUSED:
        assert error.hint == KEYS[name].mark(Rejected).reason
        return
    section = name.rpartition(".")[0]
    switch = f"{section}.{next(s for s in SWITCHES if s in type(KEYS[name].section).model_fields)}"
    check_error(error, "unused-key", "(from the test)", f"{switch} is false", f"{switch}=true")


@pytest.mark.parametrize("name", MASKS)
def test_disabled_mask_of_disabled_section_is_accepted(name: str) -> None:
    (line,) = planned({name: False}).warnings
    assert line.startswith(f"`{name}` is false (from the test)")


@pytest.mark.parametrize(
    ("setting", "without"),
    [
        ({"rllm.algorithm.norm_adv_by_std_in_grpo": False}, ["advantages", "update"]),
        ({"rllm.algorithm.eps_clip": 0.1}, ["update"]),
        (
            {"rllm.algorithm.on_missing_reward": "drop"},
            ["greedy_baseline", "check_rewards", "reject", "advantages", "update"],
        ),
    ],
)
def test_options_of_uncalled_plugins_are_rejected(setting: dict[str, Any], without: list[str]) -> None:
    error = refusal({**setting, "rllm.pipeline.remove": without})
    check_error(error, "unused-key", *(f"`{key}`" for key in setting), "(from the test)")
    assert error.hint


def test_users_loss_disables_options_of_the_recipe() -> None:
    recipe = {"rllm.env.name": "guess"}
    assert planned(recipe).composed.value("rllm.algorithm.eps_clip_high") == 0.3
    plan = planned(recipe | {"rllm.algorithm.loss_fn": "reinforce"})
    assert plan.composed.value("rllm.algorithm.eps_clip_high") is None
    assert plan.warnings == ()


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        ("gspo", "sequence_eps_clip, sequence_eps_clip_high"),
        ("dppo_tv", "max_divergence, max_divergence_high, clip_ratio_c, kl_tau"),
    ],
)
def test_loss_with_other_bounds_ignores_eps_clip(loss: str, options: str) -> None:
    recipe = {"rllm.env.name": "guess", "rllm.algorithm.loss_fn": loss}
    params = planned(recipe).losses.get("agent").params
    assert params == type(params)()
    for key in ("rllm.algorithm.eps_clip", "rllm.algorithm.eps_clip_high"):
        error = refusal(recipe | {key: 0.1})
        check_error(error, "unused-key", f"`{key}` is 0.1 (from the test)")
        others = "loss ppo, loss cispo, loss clip_cov, loss fipo."
        check_values(error.hint, others, f"loss {loss} (", options)


def test_only_stepwise_advantages_are_the_default() -> None:
    (warning,) = planned({"rllm.stepwise_advantage.enable": True}).warnings
    check_values(warning, "`rllm.stepwise_advantage.enable` is true (from the test)", "normalize_by_steps is false")
    both = {"rllm.stepwise_advantage.enable": True, "rllm.stepwise_advantage.normalize_by_steps": True}
    assert planned(both).warnings == ()
