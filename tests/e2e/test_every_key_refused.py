"""A value that no part of a run reads: a user's value stops the run with a reason, any other returns to its default."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import check_error, check_values
from pydantic import Field

from rllm.config.layers import Tier, layer_from_dotted
from rllm.planning.unused_keys import Key, acting_plugins, core_keys
from rllm_core.contracts.backend import Backend, BackendPlugin, Capabilities
from rllm_core.contracts.engine import EnginePlugin, HostedEngine
from rllm_core.contracts.plugin import NoParams, Params
from rllm_core.contracts.reward import RewardPlugin
from rllm_core.contracts.stage import StagePlugin
from rllm_core.contracts.workflow import Workflow, WorkflowPlugin
from rllm_core.errors import ConfigError
from rllm_core.pipeline.pipeline import Pipeline
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.section import Rejected

from .conftest import plan_of

KEYS = {key.dotted: key for key in core_keys(RunConfig())}
IN_EVERY_RUN = ("rllm.record",)
"""Keys that a tracker of every run reads, if it is installed."""
BY_PLUGINS = [name for name, key in KEYS.items() if not key.is_read_by_core and name not in IN_EVERY_RUN]
INSTALLED = Registry.load()
NOT_USED = [name for name in BY_PLUGINS if not acting_plugins(INSTALLED, KEYS[name])]
REFUSED = [name for name, key in KEYS.items() if key.mark(Rejected) and key.mark(Rejected).accepted is None]
REDUNDANT = [name for name, key in KEYS.items() if key.mark(Rejected) and key.mark(Rejected).accepted is not None]
SWITCHES = ("enable", "log_episodes")
SWITCHED = [name for name, key in KEYS.items() if key.inherited and key.path[-1] not in SWITCHES]
MASKS = [name for name in SWITCHED if name.startswith("rllm.compact_filtering.") and KEYS[name].default is True]
"""Keys of masks. Without filters nothing is masked, so their other value has no effect."""
OTHER_VALUES: dict[str, Any] = {
    "rllm.agent.name": "rllm-core/math_agent",
    "rllm.agent.agent_args": {"system_prompt": "guess"},
    "rllm.agent.engine_args": {"size": 1},
    "rllm.algorithm.adv_estimator": "rloo",
    "rllm.teacher": {"name": "policy", "prompt": "Think."},
    "rllm.algorithm.estimator_map": {"judge": "rloo"},
    "rllm.algorithm.loss_fn": "ppo",
    "rllm.algorithm.loss_map": {"judge": "ppo"},
    "rllm.algorithm.loss_agg_mode": "token-sum",
    "rllm.algorithm.eps_clip": 0.1,
    "rllm.algorithm.eps_clip_high": 0.3,
    "rllm.algorithm.lr_schedule": "linear",
    "rllm.algorithm.warmup_steps_ratio": 0.5,
    "rllm.algorithm.rollout_correction.bypass_mode": True,
    "rllm.algorithm.rollout_correction.tis_mode": "token",
    "rllm.algorithm.rollout_correction.tis_beyond_cap": "mask",
    "rllm.algorithm.rollout_correction.tis_batch_normalize": True,
    "rllm.algorithm.rollout_correction.reject": {"token_k1": 1.5},
    "rllm.algorithm.rollout_correction.preset": "decoupled_token_is",
    "rllm.algorithm.kl_estimator": "k2",
    "rllm.algorithm.on_missing_reward": "drop",
    "rllm.algorithm.on_precomputed_mismatch": "zero",
    "rllm.stepwise_advantage.mode": "per_step",
    "rllm.rollout.engine": "deaf",
    "rllm.reward": ["deaf"],
    "rllm.renderer": "rllm-core/template",
    "rllm.transform.grouping": "rllm-core/task_role",
    "rllm.rejection_sample.mode": "episode",
    "rllm.episode_logging.episode_log_dir": "elsewhere",
    "sampling.train.top_p": 0.5,
    "sampling.train.top_k": 5,
    "rllm.async_training.fwd_bwd_group_size": 4,
    "rllm.async_training.episode_offload_dir": "elsewhere",
    "rllm.async_training.trajectory_group_offload_dir": "elsewhere",
    "rllm.sandbox": "local",
    "rllm.sdk.store.path": "traces.db",
    "rllm.sdk.processing.groupby_key": "session",
    "rllm.sdk.processing.traj_name_key": "role",
    "rllm.sdk.proxy.host": "localhost",
    "rllm.sdk.proxy.mode": "external",
    "rllm.sdk.proxy.admin_token": "secret",
}
NO_READERS = layer_from_dotted(
    {"rllm.backend": "deaf", "rllm.workflow.name": "deaf", "rllm.pipeline.stages": ["deaf", "log"]}, "set-up"
)
"""Settings of a run whose plugins read no key. They have no engine, because the backend does not host one."""

CORRECTION = "rllm.algorithm.rollout_correction"


class DeafModel(Params):
    name: str = Field("deaf", description="Nothing.")


class DeafSections(Params):
    model: DeafModel = Field(default_factory=DeafModel, description="Nothing.")


def _load_registry() -> Registry:
    """Return the installed plugins with a backend and a workflow that read no key."""
    registry = Registry.load()
    can = Capabilities(custom_losses=True, columns=frozenset({"old_logprobs"}))
    common: dict[str, Any] = {"name": "deaf", "summary": "For tests."}
    registry.add(BackendPlugin(params=DeafSections, load=lambda: Backend, capabilities=can, **common))
    registry.add(WorkflowPlugin(params=NoParams, load=lambda: Workflow, **common))
    registry.add(EnginePlugin(params=NoParams, load=lambda: HostedEngine, **common))
    registry.add(RewardPlugin(params=NoParams, load=lambda: Pipeline, **common))
    reads, writes = frozenset({"tasks"}), frozenset({"episodes"})
    registry.add(StagePlugin(params=NoParams, load=lambda: Pipeline, reads=reads, writes=writes, **common))
    return registry


REGISTRY = _load_registry()


def other_value(name: str) -> Any:
    """Return an allowed value of the key that is not its default."""
    default = KEYS[name].default
    if name in OTHER_VALUES:
        return OTHER_VALUES[name]
    return not default if isinstance(default, bool) else default + 1


def refusal(*arguments: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        plan_of(*arguments)
    return caught.value


@pytest.mark.parametrize("name", [name for name in BY_PLUGINS if name not in MASKS])
def test_users_value_is_refused_if_no_plugin_uses_it(name: str) -> None:
    error = refusal({name: other_value(name)}, REGISTRY, [NO_READERS])
    assert error.message.startswith(f"`{name}")
    check_error(error, "unused-key", "(from the test)")
    assert error.hint


@pytest.mark.parametrize("name", BY_PLUGINS)
def test_value_of_lower_origin_is_reset_if_unused(name: str) -> None:
    lower = layer_from_dotted({name: other_value(name)}, "some environment", Tier.ENVIRONMENT)
    plan = plan_of({}, REGISTRY, [lower, NO_READERS])
    assert plan.composed.value(name) == KEYS[name].default
    assert plan.composed.origins[name] == "default"
    (warning,) = plan.warnings
    assert warning.startswith("no stage of rllm.pipeline updates the weights")


def test_a_reset_value_of_an_earlier_run_is_warned_of() -> None:
    saved = layer_from_dotted({"rllm.algorithm.eps_clip_high": 0.3}, "runs/one/config.yaml", Tier.SAVED)
    plan = plan_of({"rllm.algorithm.loss_fn": "reinforce"}, REGISTRY, [saved])
    assert plan.composed.value("rllm.algorithm.eps_clip_high") is None
    assert plan.composed.tiers["rllm.algorithm.eps_clip_high"] is Tier.PACKAGED
    (warning,) = plan.warnings
    check_values(warning, "`rllm.algorithm.eps_clip_high` is 0.3 (from runs/one/config.yaml)", "default")


@pytest.mark.parametrize("name", NOT_USED)
def test_key_without_an_installed_plugin_is_refused(name: str) -> None:
    error = refusal({"rllm.env.name": "guess", name: other_value(name)}, REGISTRY)
    check_error(error, "unused-key", f"`{name}`", "(from the test)")
    assert ("workflow agent" in error.hint) is name.startswith("rllm.sdk")


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_value_is_refused_with_the_reason(name: str) -> None:
    value = {name: other_value(name)}
    error = refusal(value, REGISTRY)
    assert error.message.startswith(f"`{name}` is ")
    assert error.message.endswith("(from the test), which is not supported.")
    assert error.hint == KEYS[name].mark(Rejected).reason
    plan = plan_of({}, REGISTRY, [layer_from_dotted(value, "some environment", Tier.ENVIRONMENT)])
    assert plan.composed.value(name) == KEYS[name].default


@pytest.mark.parametrize("name", REDUNDANT)
def test_what_is_always_done_may_be_asked_for_and_is_warned_about(name: str) -> None:
    mark = KEYS[name].mark(Rejected)
    assert plan_of({name: True}, REGISTRY).warnings == (f"`{name}` is true (from the test). {mark.reason}",)
    saved = layer_from_dotted({name: True}, "an earlier run", Tier.SAVED)
    assert plan_of({}, REGISTRY, [saved]).warnings == ()


def test_what_is_always_done_cannot_be_switched_off() -> None:
    error = refusal({"rllm.algorithm.use_rllm": False}, REGISTRY)
    check_error(error, "unused-key", "`rllm.algorithm.use_rllm` is false (from the test)")
    assert error.hint


@pytest.mark.parametrize("name", [name for name in SWITCHED if name not in MASKS])
def test_a_key_of_a_section_that_is_switched_off_is_refused(name: str) -> None:
    error = refusal({name: other_value(name)}, REGISTRY)
    if name in REFUSED:
        assert error.hint == KEYS[name].mark(Rejected).reason
        return
    section = name.rpartition(".")[0]
    switch = f"{section}.{next(s for s in SWITCHES if s in type(KEYS[name].section).model_fields)}"
    check_error(error, "unused-key", "(from the test)", f"{switch} is false", f"{switch}=true")


@pytest.mark.parametrize("name", MASKS)
def test_what_is_switched_off_with_its_section_may_be_switched_off(name: str) -> None:
    (line,) = plan_of({name: False}, REGISTRY).warnings
    assert line.startswith(f"`{name}` is false (from the test)")


@pytest.mark.parametrize(
    ("settings", "given", "other"),
    [
        (
            {"rllm.trainer.total_batches": 3, "rllm.trainer.total_epochs": 2},
            "`rllm.trainer.total_epochs` is 2 (from the test)",
            "rllm.trainer.total_batches is 3",
        ),
        (
            {"rllm.algorithm.entropy.final_coeff": 0.1},
            "`rllm.algorithm.entropy.final_coeff` is 0.1 (from the test)",
            "rllm.algorithm.entropy.decay_steps is 0",
        ),
        (
            {"rllm.algorithm.entropy.decay_steps": 9},
            "`rllm.algorithm.entropy.decay_steps` is 9 (from the test)",
            "coeff and final_coeff",
        ),
        (
            {"rllm.algorithm.kl_estimator": "k2"},
            '`rllm.algorithm.kl_estimator` is "k2" (from the test)',
            "rllm.algorithm.kl_beta is 0",
        ),
        (
            {f"{CORRECTION}.tis_mode": "token", f"{CORRECTION}.bypass_mode": True},
            f'`{CORRECTION}.tis_mode` is "token" (from the test)',
            "bypass_mode is true",
        ),
        (
            {f"{CORRECTION}.tis_floor": 0.5},
            f"`{CORRECTION}.tis_floor` is 0.5 (from the test)",
            f"{CORRECTION}.tis_mode is null",
        ),
        ({"critic.clip": 0.2}, "`critic.clip` is 0.2 (from the test)", "values"),
        (
            {"rllm.algorithm.on_precomputed_mismatch": "zero"},
            '`rllm.algorithm.on_precomputed_mismatch` is "zero" (from the test)',
            "rllm.algorithm.use_precomputed_advantage is false",
        ),
        (
            {"rllm.env.env_args.prompt": "guess"},
            "rllm.env.env_args is {'prompt': 'guess'}",
            "rllm.env.name is custom",
        ),
    ],
)
def test_a_value_that_another_key_makes_idle_is_refused(settings: dict[str, Any], given: str, other: str) -> None:
    check_error(refusal(settings, REGISTRY), "unused-key", given, other)


@pytest.mark.parametrize(
    ("setting", "without"),
    [
        ({"rllm.algorithm.norm_adv_by_std_in_grpo": False}, ["advantages", "update"]),
        ({"rllm.algorithm.eps_clip": 0.1}, ["update"]),
        ({"rllm.agent.overlong_filter": True}, ["compact_filter"]),
        (
            {"rllm.algorithm.on_missing_reward": "drop"},
            ["greedy_baseline", "check_rewards", "reject", "advantages", "update"],
        ),
    ],
)
def test_options_of_plugins_that_no_stage_calls_are_refused(setting: dict[str, Any], without: list[str]) -> None:
    error = refusal({**setting, "rllm.pipeline.remove": without}, REGISTRY)
    check_error(error, "unused-key", *(f"`{key}`" for key in setting), "(from the test)")
    assert error.hint


def test_a_choice_of_the_user_makes_idle_what_a_recipe_set_for_another() -> None:
    recipe = {"rllm.env.name": "guess"}
    assert plan_of(recipe, REGISTRY).composed.value("rllm.algorithm.eps_clip_high") == 0.3
    plan = plan_of(recipe | {"rllm.algorithm.loss_fn": "reinforce"}, REGISTRY)
    assert plan.composed.value("rllm.algorithm.eps_clip_high") is None
    assert plan.warnings == ()


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        ("gspo", "sequence_eps_clip, sequence_eps_clip_high"),
        ("gmpo", "log_ratio_clip, log_ratio_clip_high"),
        ("dppo_tv", "max_divergence, max_divergence_high, clip_ratio_c, kl_tau"),
    ],
)
def test_a_loss_that_bounds_something_else_does_not_take_eps_clip_over(loss: str, options: str) -> None:
    recipe = {"rllm.env.name": "guess", "rllm.algorithm.loss_fn": loss}
    params = plan_of(recipe, REGISTRY).losses.get("agent").params
    assert params == type(params)()
    for key in ("rllm.algorithm.eps_clip", "rllm.algorithm.eps_clip_high"):
        error = refusal(recipe | {key: 0.1}, REGISTRY)
        check_error(error, "unused-key", f"`{key}` is 0.1 (from the test)")
        others = "loss ppo, loss cispo, loss clip_cov, loss fipo."
        check_values(error.hint, others, f"loss {loss} (", options)


def test_only_stepwise_advantages_are_the_default() -> None:
    (warning,) = plan_of({"rllm.stepwise_advantage.enable": True}, REGISTRY).warnings
    check_values(warning, "`rllm.stepwise_advantage.enable` is true (from the test)", "normalize_by_steps is false")
    both = {"rllm.stepwise_advantage.enable": True, "rllm.stepwise_advantage.normalize_by_steps": True}
    assert plan_of(both, REGISTRY).warnings == ()


@pytest.mark.long
def test_every_key_without_a_mark_is_the_core_s_own() -> None:
    """Marked keys are tested above. `test_every_key.py` shows that the core reads all others, including keys that
    plugins also read."""
    marked = {*BY_PLUGINS, *REFUSED, *REDUNDANT, *(name for name, key in KEYS.items() if key.options_of)}

    def acts(key: Key) -> bool:
        return bool(acting_plugins(Registry.load(), key))

    assert [name for name, key in KEYS.items() if name not in marked and acts(key)] == []


@pytest.mark.parametrize("value", ["off", "outcomes", "tokens"])
def test_a_record_is_refused_where_nothing_makes_one(value: str) -> None:
    registry = Registry.load(allow=["rllm-local", "rllm"])
    error = refusal({"rllm.env.name": "guess", "rllm.record": value}, registry)
    check_error(error, "unused-key", "`rllm.record`", "pip install rllm-record")
