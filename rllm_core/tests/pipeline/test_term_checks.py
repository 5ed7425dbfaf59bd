"""What is refused or doubted about KL divergence, rollout correction and the sections of a critic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from expecting import check_values, expect_error
from pydantic import Field

from rllm.planning.plan import RunPlan
from rllm_core.contracts import Backend, Capabilities, Params
from rllm_core.errors import ConfigError

MakePlan = Callable[..., RunPlan]
CORRECTION = "rllm.algorithm.rollout_correction"


class OptimizerSection(Params):
    rate: float = Field(0.1, description="Nothing.")


class CriticSection(Params):
    clip: float | None = Field(None, description="Nothing.")
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection, description="Nothing.")


class Sections(Params):
    critic: CriticSection = Field(default_factory=CriticSection, description="Nothing.")


@pytest.fixture
def make(plan: MakePlan, offer: Any) -> MakePlan:
    """Plans with a backend that acts on all of these keys; its section `critic` serves the column `values`."""
    columns = frozenset({"old_logprobs", "ref_logprobs", "values"})
    offer(
        "backend",
        "able",
        Backend,
        params=Sections,
        config_keys=frozenset({"rllm.algorithm.kl_beta", "rllm.algorithm.kl_estimator", f"{CORRECTION}.*"}),
        model_key="critic.clip",
        column_sections={"values": "critic"},
        capabilities=Capabilities(custom_losses=True, columns=columns),
    )
    offer(
        "backend",
        "truncating",
        Backend,
        config_keys=frozenset({f"{CORRECTION}.*"}),
        capabilities=Capabilities(custom_losses=True, columns=frozenset({"old_logprobs"}), full_logprobs=False),
    )
    offer("estimator", "critical", needs=frozenset({"values"}))
    offer("loss", "own", corrects_rollouts=True)
    offer("stage", "old", reads=frozenset({"tasks"}), writes=frozenset({"episodes"}), off_policy=True)
    return lambda settings: plan({"rllm.backend": "able"} | settings)


@pytest.mark.parametrize(
    ("settings", "code", "values"),
    [
        ({f"{CORRECTION}.tis_mode": "token", f"{CORRECTION}.bypass_mode": True}, "unused-key", ["bypass_mode"]),
        ({f"{CORRECTION}.tis_cap": 3.0}, "unused-key", ["3.0", f"{CORRECTION}.tis_mode"]),
        ({f"{CORRECTION}.tis_beyond_cap": "mask"}, "unused-key", ['"mask"', f"{CORRECTION}.tis_mode"]),
        ({f"{CORRECTION}.tis_floor": 0.5}, "unused-key", ["0.5", f"{CORRECTION}.tis_mode"]),
        ({"rllm.algorithm.kl_estimator": "k2"}, "unused-key", ['"k2"', "rllm.algorithm.kl_beta"]),
        (
            {f"{CORRECTION}.tis_floor": 2.0, f"{CORRECTION}.tis_mode": "token"},
            "empty-ratio-range",
            [f"{CORRECTION}.tis_floor is 2.0", f"{CORRECTION}.tis_cap is 2.0"],
        ),
        ({"critic.clip": 0.2}, "unused-key", ["0.2"]),
        ({"critic.optimizer.rate": 0.2}, "unused-key", ["0.2"]),
    ],
    ids=str,
)
def test_term_without_effect_is_refused(make: MakePlan, settings: dict[str, Any], code: str, values: list[str]) -> None:
    with expect_error(ConfigError, code, next(iter(settings)), *values) as caught:
        make(settings)
    assert caught.value.hint


@pytest.mark.parametrize(
    "settings",
    [
        {"rllm.algorithm.kl_beta": 0.1, "rllm.algorithm.kl_estimator": "k2"},
        {f"{CORRECTION}.bypass_mode": True},
        {f"{CORRECTION}.bypass_mode": False},
        {
            f"{CORRECTION}.bypass_mode": False,
            f"{CORRECTION}.tis_mode": "sequence",
            f"{CORRECTION}.tis_cap": 3.0,
            f"{CORRECTION}.tis_floor": 0.5,
            f"{CORRECTION}.tis_beyond_cap": "mask",
        },
        {"critic.clip": None, "critic.optimizer.rate": 0.1},
        {"critic.clip": 0.2, "rllm.algorithm.adv_estimator": "critical"},
        {"critic.clip": 0.2, "rllm.algorithm.estimator_map": {"judge": "critical"}},
    ],
)
def test_what_fits_together_is_accepted_without_a_word(make: MakePlan, settings: dict[str, Any]) -> None:
    assert make(settings).warnings == ()


@pytest.mark.parametrize(
    ("settings", "losses"),
    [
        ({"rllm.algorithm.loss_fn": "own", "rllm.algorithm.estimator_map": {"judge": "rloo"}}, "loss 'own' applies"),
        ({"rllm.algorithm.loss_map": {"judge": "own"}}, "loss 'own' of role 'judge' applies"),
    ],
)
def test_rollouts_are_not_corrected_twice(make: MakePlan, settings: dict[str, Any], losses: str) -> None:
    with expect_error(ConfigError, "ratio-applied-twice", CORRECTION, "tis_mode", '"token"', "my.yaml", losses):
        make(settings | {f"{CORRECTION}.tis_mode": "token"})
    assert make(settings).warnings == ()


@pytest.fixture
def stored(make: MakePlan) -> MakePlan:
    """Plans on episodes of other weights."""
    return lambda settings: make({"rllm.pipeline.replace": {"generate": "old"}} | settings)


@pytest.mark.parametrize("where", ["rllm.algorithm.loss_fn", "rllm.algorithm.loss_map.judge"])
def test_loss_without_ratio_needs_correction_if_stale(stored: MakePlan, where: str) -> None:
    with expect_error(ConfigError, "loss-without-ratio", "'reinforce'", "'old'"):
        stored({where: "reinforce"})
    assert stored({where: "reinforce", f"{CORRECTION}.tis_mode": "token"}).warnings == ()


def test_old_rollouts_have_ratios_to_what_sampled_them(stored: MakePlan) -> None:
    assert stored({}).off_policy
    with pytest.raises(ConfigError, match="bypass_mode is false"):
        stored({f"{CORRECTION}.bypass_mode": False})
    with pytest.raises(ConfigError, match=r"rllm\.rollout\.n"):
        stored({"rllm.rollout.n": 4})  # there are as many as there are
    for settings in ({}, {f"{CORRECTION}.tis_mode": "sequence"}, {"rllm.algorithm.loss_fn": "own"}):
        assert stored(settings).warnings == ()


def test_k1_in_the_loss_is_warned_of(make: MakePlan) -> None:
    (warning,) = make({"rllm.algorithm.kl_beta": 0.1, "rllm.algorithm.kl_estimator": "k1"}).warnings
    check_values(warning, "rllm.algorithm.kl_estimator=k1", "k2", "k3")


def test_run_needs_columns_of_plugins_and_terms(make: MakePlan) -> None:
    assert make({}).needs == frozenset()
    assert make({"rllm.algorithm.kl_beta": 0.1}).needs == {"ref_logprobs"}
    roles = {"rllm.algorithm.estimator_map": {"judge": "critical"}, "rllm.algorithm.kl_beta": 0.1}
    assert make(roles).needs == {"ref_logprobs", "values"}


def test_effect_of_truncation_on_ratio_is_reported(make: MakePlan) -> None:
    assert not [line for line in make({"sampling.train.temperature": 0.5}).warnings if "whole distributions" in line]
    (told,) = [line for line in make({"sampling.train.top_p": 0.9}).warnings if "sampling.train.top_p=0.9" in line]
    assert "sampler" in told
    plan = make({"sampling.train.top_k": 5, "rllm.backend": "truncating"})
    (told,) = [line for line in plan.warnings if "sampling.train.top_k=5" in line]
    assert "trainer" in told


def test_rollout_correction_needs_logprobs_of_the_sampler(make: MakePlan) -> None:
    settings = {"rllm.backend": "truncating", f"{CORRECTION}.tis_mode": "token"}
    assert make(settings)
    with expect_error(ConfigError, "missing-logprobs", "tis_mode=token", "'truncating'"):
        make(settings | {"sampling.train.top_p": 0.9})


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("of_engine", [True, False, None])
def test_the_sampler_reports_log_probs_before_truncation(plan: MakePlan, own: bool, of_engine: bool | None) -> None:
    made = plan()
    backend = replace(made.backend.plugin, capabilities=Capabilities(full_logprobs=own))
    engine: Any = None if of_engine is None else SimpleNamespace(plugin=SimpleNamespace(full_logprobs=of_engine))
    made = replace(made, backend=replace(made.backend, plugin=backend), engine=engine)
    assert made.full_logprobs is (own if of_engine is None else of_engine)
