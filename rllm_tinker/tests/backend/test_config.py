"""The backend's keys: what they forward to, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import expect_error

from rllm.config.compose import Composed, compose
from rllm.config.layers import layers_from_overrides
from rllm.planning.plan import RunPlan
from rllm.planning.planner import make_plan
from rllm.planning.preflight import check_plugins
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_tinker.checks import check_run
from rllm_tinker.settings import TinkerConfig

BACKEND = "rllm/backend=tinker"


def compose_words(registry: Registry, *words: str) -> Composed:
    return compose(registry, layers_from_overrides([BACKEND, *words]))


def plan_run(registry: Registry, *words: str) -> RunPlan:
    return make_plan(compose_words(registry, "rllm.env.name=guess", *words), registry)


@pytest.mark.parametrize(
    ("native", "core", "word", "value"),
    [
        ("training.group_size", "rllm.rollout.n", "5", 5),
        ("validation.group_size", "rllm.rollout.n_val", "5", 5),
        ("training.lr_schedule", "rllm.algorithm.lr_schedule", "cosine", "cosine"),
        ("training.warmup_steps_ratio", "rllm.algorithm.warmup_steps_ratio", "0.25", 0.25),
        ("rollout_engine.disable_thinking", "rllm.disable_thinking", "true", True),
        ("rollout_engine.accumulate_reasoning", "rllm.accumulate_reasoning", "true", True),
    ],
)
def test_group_sizes_and_shared_settings_have_two_names(
    registry: Registry, native: str, core: str, word: str, value: Any
) -> None:
    for given in (native, core):
        found = compose_words(registry, f"{given}={word}")
        assert found.value(native) == found.value(core) == value


@pytest.mark.parametrize(
    ("words", "model"),
    [
        ((), "Qwen/Qwen3-8B"),
        (("tinker_base_url=http://127.0.0.1:1",), "Qwen/Qwen3-8B"),
        (("tinker_base_url=local",), "tiny"),
        (("tinker_base_url=local", "model.name=./mine"), "./mine"),
    ],
)
def test_default_model_of_local_server_is_tiny(registry: Registry, words: tuple[str, ...], model: str) -> None:
    assert compose_words(registry, *words).value("model.name") == model


@pytest.mark.parametrize(
    ("estimator", "loss"),
    [
        ("grpo", "ppo"),
        ("reinforce", "importance_sampling"),
        ("rloo", "importance_sampling"),
        ("reinforce_plus_plus_baseline", "importance_sampling"),
        ("opo", "importance_sampling"),
    ],
)
def test_default_loss_of_estimator_matches_the_table(registry: Registry, estimator: str, loss: str) -> None:
    plan = plan_run(registry, "tinker_base_url=local", f"rllm.algorithm.adv_estimator={estimator}")
    assert plan.losses.default.plugin.name == loss


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rllm.algorithm.adv_estimator=gae"], "needs values; backend 'tinker' cannot fill that"),
        (["rllm.algorithm.adv_estimator=otb"], "needs sum_pi_squared; backend 'tinker' cannot fill that"),
        (["critic.clip=1"], "critic"),
        (["training.max_tokens_per_microbatch=5"], "max_tokens_per_microbatch"),
    ],
)
def test_unsupported_settings_are_rejected_before_the_start(registry: Registry, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_run(registry, "tinker_base_url=local", *words)


def test_key_of_unselected_backend_names_the_backend(registry: Registry) -> None:
    values = ("`tinker_base_url` (from command line)", "backend tinker")
    with expect_error(ConfigError, "section-of-other-backend", *values):
        compose(registry, layers_from_overrides(["tinker_base_url=local"]))


AHEAD = ("rllm.async_training.enable=true", "rllm.async_training.staleness_threshold=2")
INFLIGHT = "rollout_engine.weights=inflight"
NEWEST = "rllm.async_training.partial_rollout=true"


@pytest.mark.parametrize("words", [AHEAD, (*AHEAD, NEWEST), (*AHEAD, NEWEST, INFLIGHT), (INFLIGHT,)], ids=len)
def test_batches_may_be_generated_ahead(registry: Registry, words: tuple[str, ...]) -> None:
    check_plugins(plan_run(registry, "tinker_base_url=local", *words))


def test_inflight_weights_reject_fixed_versions(registry: Registry) -> None:
    plan = plan_run(registry, "tinker_base_url=local", *AHEAD, INFLIGHT)
    with expect_error(ConfigError, "weights-not-pinned", "rollout_engine.weights", "inflight", NEWEST):
        check_plugins(plan)


def test_validation_only_run_accepts_staleness_with_inflight_weights() -> None:
    ahead = {"enable": True, "staleness_threshold": 2}
    run = RunConfig.model_validate({"rllm": {"async_training": ahead, "trainer": {"val_only": True}}})
    check_run(run, TinkerConfig.model_validate({"rollout_engine": {"weights": "inflight"}}))
