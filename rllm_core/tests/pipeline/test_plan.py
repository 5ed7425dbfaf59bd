"""Every name in a config becomes a plugin with its options, or an error that says where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from expecting import check_error, check_values, expect_error

from rllm.planning.plan import RunPlan
from rllm_core.contracts.backend import BackendPlugin, Capabilities
from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_core.contracts.estimator import ALWAYS_FILLED, EstimatorPlugin
from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.plugin import NoParams, Params
from rllm_core.contracts.reward import RewardPlugin
from rllm_core.contracts.tracker import TrackerPlugin
from rllm_core.contracts.workflow import WorkflowPlugin
from rllm_core.errors import ConfigError, RllmError
from rllm_core.plugins.registry import Registry

MakePlan = Callable[..., RunPlan]


def _error(plan: MakePlan, settings: dict[str, Any]) -> RllmError:
    with pytest.raises(ConfigError) as caught:
        plan(settings)
    return caught.value


def _no_load() -> Any:
    raise AssertionError("planning must not load what it plans")


@pytest.fixture
def needy(registry: Registry) -> None:
    """An estimator and a loss that need columns which no backend here can fill."""
    common: dict[str, Any] = {"summary": "For tests.", "params": NoParams, "load": _no_load}
    registry.add(EstimatorPlugin(name="needy", needs=frozenset({"values"}), default_loss="ppo", **common))
    registry.add(LossPlugin(name="needy", needs=frozenset({"ref_logprobs", "ref_values"}), **common))
    registry.add(EstimatorPlugin(name="modest", needs=frozenset({"old_logprobs"}), **common))


def test_a_workflow_that_ends_responses_at_texts_needs_an_engine_that_can(
    plan: Callable[..., RunPlan], registry: Registry
) -> None:
    plugin: WorkflowPlugin[Any] = WorkflowPlugin(
        name="reacts", summary="For tests.", params=NoParams, load=lambda: None, stop_texts=True
    )
    registry.add(plugin)
    able = Capabilities(custom_losses=True, columns=frozenset({"old_logprobs"}), stop_texts=True)
    for name, capabilities in (("able", able), ("unable", replace(able, stop_texts=False))):
        backend: BackendPlugin[Any] = BackendPlugin(
            name=name, summary="For tests.", params=NoParams, load=lambda: None, capabilities=capabilities
        )
        registry.add(backend)
    plan({"rllm.workflow.name": "reacts", "rllm.backend": "able"})
    with expect_error(ConfigError, "stop-not-supported", "'reacts'", "'unable'"):
        plan({"rllm.workflow.name": "reacts", "rllm.backend": "unable"})


def test_a_workflow_that_renders_elsewhere_needs_token_ids(plan: Callable[..., RunPlan], registry: Registry) -> None:
    common: dict[str, Any] = {"summary": "For tests.", "params": NoParams, "load": _no_load}
    registry.add(WorkflowPlugin(name="remote", renders_elsewhere=True, **common))
    able = Capabilities(custom_losses=True, columns=frozenset({"old_logprobs"}))
    for name, capabilities in (("able", able), ("unable", replace(able, token_ids=False))):
        registry.add(BackendPlugin(name=name, capabilities=capabilities, **common))
    plan({"rllm.workflow.name": "remote", "rllm.backend": "able"})
    with expect_error(ConfigError, "no-token-ids", "'remote'", "'unable'"):
        plan({"rllm.workflow.name": "remote", "rllm.backend": "unable"})


def test_an_environment_says_which_keys_a_run_with_it_must_set(plan: MakePlan, registry: Registry) -> None:
    common: dict[str, Any] = {"summary": "For tests.", "params": NoParams, "load": _no_load}
    registry.add(EnvironmentPlugin(name="unpaid", needs_keys={"rllm.reward": "[paying]"}, **common))
    registry.add(RewardPlugin(name="paying", **common))
    error = _error(plan, {"rllm.env.name": "unpaid"})
    check_error(error, "missing-key", "'unpaid'", "`rllm.reward`", "--reward paying")
    assert plan({"rllm.env.name": "unpaid", "rllm.reward": ["paying"]}).rewards[0].chosen.plugin.name == "paying"
    registry.add(WorkflowPlugin(name="generous", gives_rewards=True, **common))
    assert plan({"rllm.env.name": "unpaid", "rllm.workflow.name": "generous"}).rewards == ()


def test_defaults(plan: MakePlan) -> None:
    made = plan()
    assert made.backend.name == "probe"
    assert made.estimators.default.plugin.name == "grpo"
    assert made.losses.get("anybody").plugin.name == "ppo"
    assert (made.grouping.plugin.name, made.rejection.plugin.name) == ("task_role", "none")
    assert made.workflow.plugin.name == "single_turn_workflow"
    assert [tracker.plugin.name for tracker in made.trackers] == ["console"]
    assert (made.environment, made.observers) == (None, ())


@pytest.mark.parametrize(
    ("estimator", "loss"),
    [
        ("grpo", "ppo"),
        ("rloo", "importance_sampling"),
        ("reinforce", "importance_sampling"),
        ("reinforce_plus_plus_baseline", "importance_sampling"),
    ],
)
def test_each_estimator_brings_its_default_loss(plan: MakePlan, estimator: str, loss: str) -> None:
    made = plan({"rllm.algorithm.adv_estimator": estimator})
    assert made.estimators.get("agent").plugin.name == estimator
    assert made.losses.get("agent").plugin.name == loss


def test_an_estimator_without_a_default_loss_gets_importance_sampling(plan: MakePlan, needy: None) -> None:
    assert plan({"rllm.algorithm.adv_estimator": "modest"}).losses.get("agent").plugin.name == "importance_sampling"


def test_roles_have_their_own_estimators_and_losses(plan: MakePlan) -> None:
    made = plan(
        {
            "rllm.algorithm.adv_estimator": "grpo",
            "rllm.algorithm.estimator_map": {"judge": "rloo", "solver": "reinforce"},
            "rllm.algorithm.loss_map": {"solver": "reinforce", "critic": "importance_sampling"},
        }
    )
    roles = ("agent", "judge", "solver", "critic")
    assert [made.estimators.get(role).plugin.name for role in roles] == ["grpo", "rloo", "reinforce", "grpo"]
    losses = [made.losses.get(role).plugin.name for role in roles]
    assert losses == ["ppo", "importance_sampling", "reinforce", "importance_sampling"]


def test_a_chosen_loss_goes_before_the_estimators_defaults(plan: MakePlan) -> None:
    made = plan({"rllm.algorithm.loss_fn": "reinforce", "rllm.algorithm.estimator_map": {"judge": "rloo"}})
    assert [made.losses.get(role).plugin.name for role in ("agent", "judge")] == ["reinforce", "reinforce"]


def test_options_come_with_the_name_or_from_the_shared_key_of_their_name(plan: MakePlan) -> None:
    made = plan(
        {
            "rllm.algorithm.norm_adv_by_std_in_grpo": False,
            "rllm.algorithm.eps_clip_high": 0.28,
            "rllm.algorithm.estimator_map": {"judge": {"name": "rllm-core/grpo", "norm_adv_by_std_in_grpo": True}},
            "rllm.algorithm.loss_map": {"judge": {"name": "ppo", "eps_clip": 0.1}},
        }
    )
    assert made.estimators.get("agent").params.norm_adv_by_std_in_grpo is False
    assert made.estimators.get("judge").params.norm_adv_by_std_in_grpo is True
    assert made.losses.get("agent").params.model_dump(exclude={"clip_ratio_c"}) == {
        "eps_clip": 0.2,
        "eps_clip_high": 0.28,
    }
    assert made.losses.get("judge").params.model_dump(exclude={"clip_ratio_c"}) == {
        "eps_clip": 0.1,
        "eps_clip_high": 0.28,
    }


def test_rejection_modes_take_the_options_next_to_them(plan: MakePlan) -> None:
    settings = {"rllm.rejection_sample.enable": True, "rllm.rejection_sample.min_trajs_per_group": 5}
    made = plan(settings)
    assert (made.rejection.plugin.name, made.rejection.params.min_trajs_per_group) == ("group", 5)
    own = {"rllm.rejection_sample.mode": {"name": "group", "min_trajs_per_group": 7}}
    made = plan({"rllm.rejection_sample.enable": True} | own)
    assert made.rejection.params.min_trajs_per_group == 7
    error = _error(plan, settings | own)
    check_error(error, "unused-key", "min_trajs_per_group")
    assert plan({"rllm.rejection_sample.enable": False}).rejection.plugin.name == "none"


WITHOUT_EFFECT = pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "episode"),
        ("mode", {"name": "group", "min_trajs_per_group": 7}),
        ("multiplier", 2),
        ("min_partial_solve_tasks", 3),
        ("min_trajs_per_group", 5),
    ],
)


@WITHOUT_EFFECT
def test_options_of_rejection_are_refused_while_it_is_off(plan: MakePlan, name: str, value: Any) -> None:
    key = f"rllm.rejection_sample.{name}"
    for settings in ({key: value}, {key: value, "rllm.rejection_sample.enable": False}):
        error = _error(plan, settings)
        check_error(
            error, "unused-key", key, "my.yaml", "rllm.rejection_sample.enable", "rllm.rejection_sample.enable=true"
        )


@WITHOUT_EFFECT
def test_options_of_rejection_are_fine_while_it_is_on(plan: MakePlan, name: str, value: Any) -> None:
    mode = "episode" if value == "episode" or name == "min_partial_solve_tasks" else "group"
    settings = {"rllm.rejection_sample.enable": True, "rllm.rejection_sample.mode": mode}
    made = plan(settings | {f"rllm.rejection_sample.{name}": value})
    assert made.rejection.plugin.name == mode


@pytest.mark.parametrize(("mode", "name"), [("group", "min_partial_solve_tasks"), ("episode", "min_trajs_per_group")])
def test_options_of_another_rejection_mode_are_refused(plan: MakePlan, mode: str, name: str) -> None:
    settings = {"rllm.rejection_sample.enable": True, "rllm.rejection_sample.mode": mode}
    error = _error(plan, settings | {f"rllm.rejection_sample.{name}": 3})
    check_error(error, "unused-key", "rllm.rejection_sample", name, "my.yaml", mode)


@pytest.mark.parametrize(
    "settings",
    [
        {"rllm.rejection_sample.mode": "none"},
        {"rllm.compact_filtering.mask_timeout": False},
        {"rllm.algorithm.entropy.coeff": 0.1, "rllm.algorithm.entropy.final_coeff": 0.1},
        {"rllm.algorithm.norm_adv_by_std_in_grpo": False, "rllm.algorithm.adv_estimator": "rloo"},
        {
            "rllm.algorithm.norm_adv_by_std_in_grpo": False,
            "rllm.algorithm.adv_estimator": {"name": "grpo", "norm_adv_by_std_in_grpo": False},
        },
    ],
    ids=lambda settings: next(reversed(settings)),
)
def test_a_key_set_to_what_happens_anyway_is_a_warning(plan: MakePlan, settings: dict[str, Any]) -> None:
    key = list(settings)[-1 if "rllm.algorithm.adv_estimator" not in settings else 0]
    (line,) = plan(settings).warnings
    assert line.startswith(f"`{key}` is ")
    check_values(line, "(from my.yaml)")


@pytest.mark.parametrize(
    "estimators",
    [
        {"adv_estimator": "reinforce_plus_plus_baseline"},
        {"adv_estimator": "rloo", "estimator_map": {"judge": "reinforce_plus_plus_baseline"}},
        {"adv_estimator": {"name": "grpo", "norm_adv_by_std_in_grpo": True}},
    ],
    ids=str,
)
def test_a_key_that_not_all_estimators_act_by_is_an_error(plan: MakePlan, estimators: dict[str, Any]) -> None:
    settings = {f"rllm.algorithm.{name}": value for name, value in estimators.items()}
    error = _error(plan, settings | {"rllm.algorithm.norm_adv_by_std_in_grpo": False})
    check_error(error, "unused-key")


def test_options_of_rejection_may_be_given_with_their_defaults_while_it_is_off(plan: MakePlan) -> None:
    defaults = {"mode": "group", "multiplier": 1, "min_partial_solve_tasks": 1, "min_trajs_per_group": 2}
    made = plan({f"rllm.rejection_sample.{name}": value for name, value in defaults.items()})
    assert made.rejection.plugin.name == "none"


def test_groups_of_one_are_warned_of_for_estimators_that_compare_within_a_group(plan: MakePlan) -> None:
    single = {"rllm.rollout.n": 1}
    for estimator, warned in (("grpo", True), ("rloo", True), ("reinforce", False)):
        warnings = plan(single | {"rllm.algorithm.adv_estimator": estimator}).warnings
        starts = f"rllm.rollout.n=1 leaves estimator {estimator} groups of one: "
        assert [line.startswith(starts) for line in warnings] == [True] * warned


@pytest.mark.parametrize(
    ("key", "value", "start"),
    [
        ("rllm.algorithm.adv_estimator", "gpro", "rllm.algorithm.adv_estimator: "),
        ("rllm.algorithm.estimator_map", {"judge": "gpro"}, "rllm.algorithm.estimator_map.judge: "),
        ("rllm.algorithm.loss_fn", "ppoo", "rllm.algorithm.loss_fn: "),
        ("rllm.algorithm.loss_map", {"judge": "ppoo"}, "rllm.algorithm.loss_map.judge: "),
        ("rllm.transform.grouping", "task_rol", "rllm.transform.grouping: "),
        ("rllm.workflow.name", "single_turn", "rllm.workflow.name: "),
        ("rllm.trainer.logger", ["console", "consol"], "rllm.trainer.logger[1]: "),
        ("rllm.trainer.observers", ["watcher"], "rllm.trainer.observers[0]: "),
    ],
)
def test_an_unknown_name_is_an_error_with_its_place(plan: MakePlan, key: str, value: Any, start: str) -> None:
    error = _error(plan, {key: value})
    assert error.message.startswith(start)


def test_a_close_name_is_suggested(plan: MakePlan) -> None:
    assert "'grpo'" in str(_error(plan, {"rllm.algorithm.adv_estimator": "gprpo"}))


def test_an_unknown_rejection_mode_is_an_error_with_its_place(plan: MakePlan) -> None:
    error = _error(plan, {"rllm.rejection_sample.enable": True, "rllm.rejection_sample.mode": "grup"})
    assert error.message.startswith("rllm.rejection_sample.mode: ")


@pytest.mark.parametrize(
    ("key", "value", "values"),
    [
        ("rllm.algorithm.adv_estimator", {"name": "rloo", "leave_out": 2}, (".leave_out is 2", "'rloo'")),
        ("rllm.algorithm.loss_map", {"judge": {"name": "ppo", "epsclip": 2}}, (".judge.epsclip is 2", "'ppo'")),
        ("rllm.workflow.workflow_args", {"turns": 3}, (".turns is 3", "'single_turn_workflow'")),
    ],
)
def test_unknown_option_is_an_error_with_its_place(
    plan: MakePlan, key: str, value: Any, values: tuple[str, ...]
) -> None:
    check_error(_error(plan, {key: value}), "unknown-option", key, *values)


def test_a_loss_that_the_backend_cannot_compute_is_refused(plan: MakePlan) -> None:
    error = _error(plan, {"rllm.backend": "poor", "rllm.algorithm.adv_estimator": "rloo"})
    check_error(error, "loss-not-supported", "'poor'", "'importance_sampling'", "rllm.algorithm.loss_fn")
    assert plan({"rllm.backend": "poor"}).losses.get("agent").plugin.name == "ppo"


def test_a_role_s_loss_is_checked_too(plan: MakePlan) -> None:
    error = _error(plan, {"rllm.backend": "poor", "rllm.algorithm.loss_map": {"judge": "reinforce"}})
    assert error.message == "Backend 'poor' cannot compute loss 'reinforce'."
    assert "Its losses: none" in _error(plan, {"rllm.backend": "weak"}).hint


def test_columns_that_the_backend_cannot_fill_are_refused(plan: MakePlan, needy: None) -> None:
    error = _error(plan, {"rllm.algorithm.loss_fn": "needy"})
    assert error.message == "Loss 'needy' needs ref_logprobs, ref_values; backend 'probe' cannot fill that."
    error = _error(plan, {"rllm.algorithm.estimator_map": {"judge": "needy"}})
    assert error.message == "Estimator 'needy' needs values; backend 'probe' cannot fill that."
    assert plan({"rllm.algorithm.adv_estimator": "modest"}).estimators.default.plugin.name == "modest"


def test_columns_that_come_with_the_trajectories_are_asked_of_no_backend(plan: MakePlan, registry: Registry) -> None:
    needs = frozenset({"step_rewards", "reward_components", "sampling_logprobs"})
    record = EstimatorPlugin(name="parts", summary="For tests.", params=NoParams, load=_no_load, needs=needs)
    registry.add(record, distribution="somebody")
    made = plan({"rllm.algorithm.adv_estimator": "parts"})
    assert made.needs == needs == ALWAYS_FILLED


def test_every_plugin_of_a_run_is_listed_once(plan: MakePlan) -> None:
    made = plan({"rllm.algorithm.estimator_map": {"judge": "grpo", "solver": "rloo"}})
    listed = [(entry.kind, entry.name) for entry in made.registered()]
    assert len(listed) == len(set(listed))
    assert {("backend", "probe"), ("estimator", "grpo"), ("estimator", "rloo"), ("loss", "ppo")} <= set(listed)
    assert {name for kind, name in listed if kind == "stage"} == {stage.plugin.name for stage in made.stages}


def test_role_may_have_a_loss_besides_an_estimator(plan: MakePlan) -> None:
    choices = {"solver": "grpo", "judge": {"name": "reinforce", "loss_fn": "ppo"}}
    made = plan({"rllm.algorithm.estimator_map": choices, "rllm.algorithm.adv_estimator": "rloo"})
    assert {role: made.estimators.get(role).plugin.name for role in ("solver", "judge", "other")} == {
        "solver": "grpo",
        "judge": "reinforce",
        "other": "rloo",
    }
    losses = {role: made.losses.get(role).plugin.name for role in ("solver", "judge", "other")}
    assert losses == {"solver": "ppo", "judge": "ppo", "other": "importance_sampling"}


def test_loss_of_a_role_may_have_options(plan: MakePlan) -> None:
    choice = {"name": "rloo", "loss_fn": {"name": "ppo", "eps_clip": 0.5}}
    assert plan({"rllm.algorithm.estimator_map": {"judge": choice}}).losses.get("judge").params.eps_clip == 0.5


def test_two_losses_for_one_role_are_refused(plan: MakePlan) -> None:
    choices = {
        "rllm.algorithm.estimator_map": {"judge": {"name": "reinforce", "loss_fn": "ppo"}},
        "rllm.algorithm.loss_map": {"judge": "reinforce"},
    }
    error = _error(plan, choices)
    assert "estimator_map.judge.loss_fn is 'ppo'" in error.message
    assert "loss_map.judge is 'reinforce'" in error.message


def test_a_pipeline_that_updates_nothing_is_warned_of(plan: MakePlan) -> None:
    (line,) = plan({"rllm.pipeline.remove": ["update"]}).warnings
    check_values(line, "rllm.pipeline", "weights")


class FileParams(Params):
    path: str = "b"


@pytest.fixture
def file_tracker(registry: Registry) -> None:
    registry.add(TrackerPlugin(name="file", summary="For tests.", params=FileParams, load=lambda: None))


@pytest.mark.parametrize(
    "trackers",
    [
        ["console", "console"],
        ["console", {"name": "rllm/console"}],
        [{"name": "file", "path": "a"}, {"name": "file", "path": "a"}],
        ["file", {"name": "file", "path": "b"}],
    ],
    ids=str,
)
def test_a_tracker_chosen_twice_for_the_same_is_an_error(
    plan: MakePlan, trackers: list[Any], file_tracker: None
) -> None:
    error = _error(plan, {"rllm.trainer.logger": trackers})
    name = "console" if "console" in trackers else "file"
    check_error(error, "duplicate-choice", "rllm.trainer.logger[1]", name)


def test_a_tracker_may_be_chosen_twice_with_other_options(plan: MakePlan, file_tracker: None) -> None:
    made = plan({"rllm.trainer.logger": ["file", {"name": "file", "path": "a"}]})
    assert [tracker.params.path for tracker in made.trackers if tracker.plugin.name == "file"] == ["b", "a"]


def test_a_backend_that_knows_a_name_does_not_know_a_stranger_of_that_name(plan: MakePlan, registry: Registry) -> None:
    registry.add(LossPlugin(name="ppo", summary="Another.", params=NoParams, load=lambda: None), distribution="other")
    settings = {"rllm.backend": "poor", "rllm.algorithm.loss_fn": "other/ppo"}
    assert _error(plan, settings).message == "Backend 'poor' cannot compute loss 'ppo'."
    plan(settings | {"rllm.algorithm.loss_fn": "rllm-core/ppo"})


def test_a_default_means_the_core_s_whoever_else_offers_the_name(plan: Any, registry: Registry) -> None:
    registry.add(
        EstimatorPlugin(name="grpo", summary="Another.", params=NoParams, load=lambda: None), distribution="rllm-grpo"
    )
    assert plan().estimators.default.registered.qualified_name == "rllm-core/grpo"
    with expect_error(ConfigError, "ambiguous-plugin", "'grpo'"):
        plan({"rllm.algorithm.adv_estimator": "grpo"})


def test_a_default_loss_that_does_not_exist_is_the_estimator_s_mistake(plan: Any, registry: Registry) -> None:
    registry.add(EstimatorPlugin(name="mine", summary="Mine.", params=NoParams, load=lambda: None, default_loss="nope"))
    with expect_error(ConfigError, "unknown-plugin", "default_loss", "'nope'"):
        plan({"rllm.algorithm.adv_estimator": "mine"})


def test_a_run_that_logs_nothing_is_told_so(plan: Any) -> None:
    (line,) = plan({"rllm.pipeline.remove": ["log"]}).warnings
    check_values(line, "rllm.pipeline", "metrics")


@pytest.mark.parametrize("weight", [-1, 0, 1])
def test_an_estimator_that_rescales_rewards_takes_their_sign(plan: MakePlan, rescaling: str, weight: int) -> None:
    chosen = {"rllm.algorithm.adv_estimator": rescaling, "rllm.reward": [{"name": "paid", "weight": weight}]}
    assert plan(chosen).rewards[0].weight == weight


@pytest.mark.parametrize("key", ["rllm.algorithm.adv_estimator", "rllm.algorithm.estimator_map"])
def test_a_weight_that_an_estimator_would_not_see_is_refused_with_what_acts(
    plan: MakePlan, rescaling: str, key: str
) -> None:
    chosen = rescaling if key.endswith("adv_estimator") else {"judge": rescaling}
    error = _error(plan, {key: chosen, "rllm.reward": [{"name": "paid", "weight": -0.1}]})
    check_error(error, "unused-key", "-0.1", "'paid'", "-0.1}}")


@pytest.fixture
def rescaling(registry: Registry) -> str:
    """Add an estimator that scales rewards, and the reward `paid`."""
    common: dict[str, Any] = {"summary": "For tests.", "params": NoParams, "load": _no_load}
    registry.add(EstimatorPlugin(name="rescales", rescales_components=True, **common))
    registry.add(RewardPlugin(name="paid", **common))
    return "rescales"
