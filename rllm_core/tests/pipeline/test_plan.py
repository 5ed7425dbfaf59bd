"""Every name in a config becomes a plugin with its options, or an error that says where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from expecting import check_values, expect_error

from rllm.planning.plan import RunPlan
from rllm_core.contracts import ALWAYS_FILLED, Capabilities, Params
from rllm_core.errors import ConfigError

MakePlan = Callable[..., RunPlan]


def _no_load() -> Any:
    raise AssertionError("planning must not load what it plans")


class FileParams(Params):
    path: str = "b"


@pytest.fixture(autouse=True)
def _plugins(offer: Any) -> None:
    """Estimators and losses that need columns which no backend here can fill, and others for tests of choices."""
    offer("estimator", "needy", load=_no_load, needs=frozenset({"values"}), default_loss="ppo")
    offer("loss", "needy", load=_no_load, needs=frozenset({"ref_logprobs", "ref_values"}))
    offer("estimator", "modest", load=_no_load, needs=frozenset({"old_logprobs"}))
    offer("estimator", "parts", load=_no_load, needs=ALWAYS_FILLED)
    offer("estimator", "rescales", load=_no_load, rescales_components=True)
    offer("estimator", "lossless", default_loss="nope")
    offer("reward", "paid", load=_no_load)
    offer("tracker", "file", params=FileParams)


@pytest.mark.parametrize(
    ("workflow", "capability", "code"),
    [("stop_texts", "stop_texts", "stop-not-supported"), ("renders_elsewhere", "token_ids", "no-token-ids")],
)
def test_workflow_may_need_a_capability_of_the_engine(
    plan: MakePlan, offer: Any, workflow: str, capability: str, code: str
) -> None:
    offer("workflow", "needs", load=_no_load, **{workflow: True})
    for name, has in (("able", True), ("unable", False)):
        can: dict[str, Any] = {"custom_losses": True, "columns": frozenset({"old_logprobs"}), capability: has}
        offer("backend", name, capabilities=Capabilities(**can))
    plan({"rllm.workflow.name": "needs", "rllm.backend": "able"})
    with expect_error(ConfigError, code, "'needs'", "'unable'"):
        plan({"rllm.workflow.name": "needs", "rllm.backend": "unable"})


def test_environment_lists_keys_that_must_be_set(plan: MakePlan, offer: Any) -> None:
    offer("environment", "unpaid", load=_no_load, needs_keys={"rllm.reward": "[paid]"})
    offer("workflow", "generous", load=_no_load, gives_rewards=True)
    with expect_error(ConfigError, "missing-key", "'unpaid'", "`rllm.reward`", "--reward paid"):
        plan({"rllm.env.name": "unpaid"})
    assert plan({"rllm.env.name": "unpaid", "rllm.reward": ["paid"]}).rewards[0].chosen.plugin.name == "paid"
    assert plan({"rllm.env.name": "unpaid", "rllm.workflow.name": "generous"}).rewards == ()


def test_defaults(plan: MakePlan) -> None:
    made = plan()
    assert made.backend.name == "probe"
    assert made.estimators.default.plugin.name == "grpo"
    assert made.losses.get("anybody").plugin.name == "ppo"
    assert (made.grouping.plugin.name, made.rejection.plugin.name) == ("task_role", "none")
    assert made.workflow.plugin.name == "single_turn_workflow"
    assert [tracker.plugin.name for tracker in made.trackers] == ["console"]
    assert made.environment is None
    assert [entry.plugin.name for entry in made.observers] == ["pending_rollouts", "weight_check"]


@pytest.mark.parametrize(
    ("estimator", "loss"),
    [
        ("grpo", "ppo"),
        ("rloo", "importance_sampling"),
        ("reinforce", "importance_sampling"),
        ("reinforce_plus_plus_baseline", "importance_sampling"),
        ("modest", "importance_sampling"),
    ],
)
def test_each_estimator_brings_its_default_loss(plan: MakePlan, estimator: str, loss: str) -> None:
    made = plan({"rllm.algorithm.adv_estimator": estimator})
    assert made.estimators.get("agent").plugin.name == estimator
    assert made.losses.get("agent").plugin.name == loss


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {
                "adv_estimator": "grpo",
                "estimator_map": {"judge": "rloo", "solver": "reinforce"},
                "loss_map": {"solver": "reinforce", "critic": "importance_sampling"},
            },
            {
                "agent": ("grpo", "ppo"),
                "judge": ("rloo", "importance_sampling"),
                "solver": ("reinforce", "reinforce"),
                "critic": ("grpo", "importance_sampling"),
            },
        ),
        (
            {"loss_fn": "reinforce", "estimator_map": {"judge": "rloo"}},
            {"agent": ("grpo", "reinforce"), "judge": ("rloo", "reinforce")},
        ),
        (
            {
                "estimator_map": {"solver": "grpo", "judge": {"name": "reinforce", "loss_fn": "ppo"}},
                "adv_estimator": "rloo",
            },
            {"solver": ("grpo", "ppo"), "judge": ("reinforce", "ppo"), "other": ("rloo", "importance_sampling")},
        ),
    ],
)
def test_roles_have_their_own_estimators_and_losses(plan: MakePlan, settings: Any, expected: Any) -> None:
    made = plan({f"rllm.algorithm.{name}": value for name, value in settings.items()})
    assert {
        role: (made.estimators.get(role).plugin.name, made.losses.get(role).plugin.name) for role in expected
    } == expected


def test_options_come_from_choice_or_shared_keys(plan: MakePlan) -> None:
    losses = {"judge": {"name": "ppo", "eps_clip": 0.1}}
    estimators = {
        "judge": {"name": "rllm-core/grpo", "norm_adv_by_std_in_grpo": True},
        "critic": {"name": "rloo", "loss_fn": {"name": "ppo", "eps_clip": 0.5}},
    }
    made = plan(
        {
            "rllm.algorithm.norm_adv_by_std_in_grpo": False,
            "rllm.algorithm.eps_clip_high": 0.28,
            "rllm.algorithm.estimator_map": estimators,
            "rllm.algorithm.loss_map": losses,
        }
    )
    assert [made.estimators.get(role).params.norm_adv_by_std_in_grpo for role in ("agent", "judge")] == [False, True]
    clips = {role: made.losses.get(role).params for role in ("agent", "judge", "critic")}
    assert {role: params.eps_clip for role, params in clips.items()} == {"agent": 0.2, "judge": 0.1, "critic": 0.5}
    assert {params.eps_clip_high for params in clips.values()} == {0.28}


def test_rejection_modes_take_the_options_next_to_them(plan: MakePlan) -> None:
    settings = {"rllm.rejection_sample.enable": True, "rllm.rejection_sample.min_trajs_per_group": 5}
    made = plan(settings)
    assert (made.rejection.plugin.name, made.rejection.params.min_trajs_per_group) == ("group", 5)
    own = {"rllm.rejection_sample.mode": {"name": "group", "min_trajs_per_group": 7}}
    made = plan({"rllm.rejection_sample.enable": True} | own)
    assert made.rejection.params.min_trajs_per_group == 7
    with expect_error(ConfigError, "unused-key", "min_trajs_per_group"):
        plan(settings | own)
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
def test_rejection_options_are_errors_if_off(plan: MakePlan, name: str, value: Any) -> None:
    key = f"rllm.rejection_sample.{name}"
    with expect_error(ConfigError, "unused-key", key, "my.yaml", "rllm.rejection_sample.enable=true"):
        plan({key: value})


@WITHOUT_EFFECT
def test_rejection_options_are_valid_if_on(plan: MakePlan, name: str, value: Any) -> None:
    mode = "episode" if value == "episode" or name == "min_partial_solve_tasks" else "group"
    settings = {"rllm.rejection_sample.enable": True, "rllm.rejection_sample.mode": mode}
    assert plan(settings | {f"rllm.rejection_sample.{name}": value}).rejection.plugin.name == mode


@pytest.mark.parametrize(("mode", "name"), [("group", "min_partial_solve_tasks"), ("episode", "min_trajs_per_group")])
def test_options_of_another_rejection_mode_are_refused(plan: MakePlan, mode: str, name: str) -> None:
    settings = {"rllm.rejection_sample.enable": True, "rllm.rejection_sample.mode": mode}
    with expect_error(ConfigError, "unused-key", "rllm.rejection_sample", name, "my.yaml", mode):
        plan(settings | {f"rllm.rejection_sample.{name}": 3})


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
def test_key_without_effect_is_a_warning(plan: MakePlan, settings: dict[str, Any]) -> None:
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
def test_unread_estimator_key_is_an_error(plan: MakePlan, estimators: dict[str, Any]) -> None:
    settings = {f"rllm.algorithm.{name}": value for name, value in estimators.items()}
    with expect_error(ConfigError, "unused-key"):
        plan(settings | {"rllm.algorithm.norm_adv_by_std_in_grpo": False})


def test_default_rejection_options_are_valid_if_off(plan: MakePlan) -> None:
    defaults = {"mode": "group", "multiplier": 1, "min_partial_solve_tasks": 1, "min_trajs_per_group": 2}
    made = plan({f"rllm.rejection_sample.{name}": value for name, value in defaults.items()})
    assert made.rejection.plugin.name == "none"


JUDGE = "rllm.algorithm.estimator_map.judge"
TWO_LOSSES = {
    "rllm.algorithm.estimator_map": {"judge": {"name": "reinforce", "loss_fn": "ppo"}},
    "rllm.algorithm.loss_map": {"judge": "reinforce"},
}


@pytest.mark.parametrize(
    ("settings", "code", "values"),
    [
        ({"rllm.algorithm.adv_estimator": "gprpo"}, "unknown-plugin", ["rllm.algorithm.adv_estimator: ", "'grpo'"]),
        ({"rllm.algorithm.estimator_map": {"judge": "gpro"}}, "unknown-plugin", [f"{JUDGE}: "]),
        ({"rllm.algorithm.loss_fn": "ppoo"}, "unknown-plugin", ["rllm.algorithm.loss_fn: "]),
        ({"rllm.algorithm.loss_map": {"judge": "ppoo"}}, "unknown-plugin", ["rllm.algorithm.loss_map.judge: "]),
        ({"rllm.transform.grouping": "task_rol"}, "unknown-plugin", ["rllm.transform.grouping: "]),
        ({"rllm.workflow.name": "single_turn"}, "unknown-plugin", ["rllm.workflow.name: "]),
        ({"rllm.trainer.logger": ["console", "consol"]}, "unknown-plugin", ["rllm.trainer.logger[1]: "]),
        ({"rllm.trainer.observers": ["watcher"]}, "unknown-plugin", ["rllm.trainer.observers[0]: "]),
        (
            {"rllm.rejection_sample.enable": True, "rllm.rejection_sample.mode": "grup"},
            "unknown-plugin",
            ["rllm.rejection_sample.mode: "],
        ),
        ({"rllm.algorithm.adv_estimator": "lossless"}, "unknown-plugin", ["default_loss", "'nope'"]),
        (
            {"rllm.algorithm.adv_estimator": {"name": "rloo", "leave_out": 2}},
            "unknown-option",
            ["rllm.algorithm.adv_estimator.leave_out is 2", "'rloo'"],
        ),
        (
            {"rllm.algorithm.loss_map": {"judge": {"name": "ppo", "epsclip": 2}}},
            "unknown-option",
            ["rllm.algorithm.loss_map.judge.epsclip is 2", "'ppo'"],
        ),
        (
            {"rllm.workflow.workflow_args": {"turns": 3}},
            "unknown-option",
            ["rllm.workflow.workflow_args.turns is 3", "'single_turn_workflow'"],
        ),
        (
            {"rllm.backend": "poor", "rllm.algorithm.adv_estimator": "rloo"},
            "loss-not-supported",
            ["'poor'", "'importance_sampling'", "rllm.algorithm.loss_fn"],
        ),
        (
            {"rllm.backend": "poor", "rllm.algorithm.loss_map": {"judge": "reinforce"}},
            "loss-not-supported",
            ["'poor'", "'reinforce'"],
        ),
        ({"rllm.backend": "weak"}, "loss-not-supported", ["Its losses: none"]),
        ({"rllm.algorithm.loss_fn": "needy"}, "missing-estimator-input", ["ref_logprobs, ref_values", "'probe'"]),
        (
            {"rllm.algorithm.estimator_map": {"judge": "needy"}},
            "missing-estimator-input",
            ["'needy'", "values;", "'probe'"],
        ),
        (TWO_LOSSES, "conflicting-keys", [f"{JUDGE}.loss_fn is 'ppo'", "loss_map.judge is 'reinforce'"]),
        *(
            ({"rllm.trainer.logger": trackers}, "duplicate-choice", ["rllm.trainer.logger[1]", name])
            for name, trackers in (
                ("console", ["console", "console"]),
                ("console", ["console", {"name": "rllm/console"}]),
                ("file", [{"name": "file", "path": "a"}, {"name": "file", "path": "a"}]),
                ("file", ["file", {"name": "file", "path": "b"}]),
            )
        ),
        *(
            (
                {f"rllm.algorithm.{key}": chosen, "rllm.reward": [{"name": "paid", "weight": -0.1}]},
                "unused-key",
                ["-0.1", "'paid'", "-0.1}}"],
            )
            for key, chosen in (("adv_estimator", "rescales"), ("estimator_map", {"judge": "rescales"}))
        ),
    ],
    ids=str,
)
def test_choices_that_cannot_be_used_are_refused(plan: MakePlan, settings: Any, code: str, values: list[str]) -> None:
    with expect_error(ConfigError, code, *values):
        plan(settings)


def test_columns_of_the_trajectories_need_no_backend(plan: MakePlan) -> None:
    made = plan({"rllm.algorithm.adv_estimator": "parts"})
    assert made.needs == frozenset({"step_rewards", "reward_components", "sampling_logprobs"}) == ALWAYS_FILLED


def test_every_plugin_of_a_run_is_listed_once(plan: MakePlan) -> None:
    made = plan({"rllm.algorithm.estimator_map": {"judge": "grpo", "solver": "rloo"}})
    listed = [(entry.kind, entry.name) for entry in made.registered()]
    assert len(listed) == len(set(listed))
    assert {("backend", "probe"), ("estimator", "grpo"), ("estimator", "rloo"), ("loss", "ppo")} <= set(listed)
    assert {name for kind, name in listed if kind == "stage"} == {stage.plugin.name for stage in made.stages}


@pytest.mark.parametrize(("stage", "value"), [("update", "weights"), ("log", "metrics")])
def test_pipelines_without_updates_or_logs_are_warned_of(plan: MakePlan, stage: str, value: str) -> None:
    (line,) = plan({"rllm.pipeline.remove": [stage]}).warnings
    check_values(line, "rllm.pipeline", value)


def test_tracker_may_repeat_with_different_options(plan: MakePlan) -> None:
    made = plan({"rllm.trainer.logger": ["file", {"name": "file", "path": "a"}]})
    assert [tracker.params.path for tracker in made.trackers if tracker.plugin.name == "file"] == ["b", "a"]


def test_backend_computes_only_the_loss_of_its_distribution(plan: MakePlan, offer: Any) -> None:
    offer("loss", "ppo", distribution="other")
    settings = {"rllm.backend": "poor", "rllm.algorithm.loss_fn": "other/ppo"}
    with expect_error(ConfigError, "loss-not-supported", "'poor'", "'ppo'"):
        plan(settings)
    plan(settings | {"rllm.algorithm.loss_fn": "rllm-core/ppo"})


def test_a_default_means_the_plugin_of_the_core(plan: MakePlan, offer: Any) -> None:
    offer("estimator", "grpo", distribution="rllm-grpo")
    assert plan().estimators.default.registered.qualified_name == "rllm-core/grpo"
    with expect_error(ConfigError, "ambiguous-plugin", "'grpo'"):
        plan({"rllm.algorithm.adv_estimator": "grpo"})


@pytest.mark.parametrize("weight", [-1, 0, 1])
def test_an_estimator_that_rescales_rewards_takes_their_sign(plan: MakePlan, weight: int) -> None:
    chosen = {"rllm.algorithm.adv_estimator": "rescales", "rllm.reward": [{"name": "paid", "weight": weight}]}
    assert plan(chosen).rewards[0].weight == weight
