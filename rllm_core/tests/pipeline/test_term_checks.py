"""What is refused or doubted about KL divergence, rollout correction and the sections of a critic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from expecting import check_error, check_values, expect_error
from pydantic import Field

from rllm.planning.plan import RunPlan
from rllm_core.contracts.backend import Backend, BackendPlugin, Capabilities
from rllm_core.contracts.estimator import AdvantageInput, Advantages, EstimatorPlugin
from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.plugin import NoParams, Params
from rllm_core.contracts.stage import StagePlugin
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry

MakePlan = Callable[..., RunPlan]
CORRECTION = "rllm.algorithm.rollout_correction"


class OptimizerSection(Params):
    rate: float = Field(0.1, description="Nothing.")


class CriticSection(Params):
    clip: float | None = Field(None, description="Nothing.")
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection, description="Nothing.")


class Sections(Params):
    critic: CriticSection = Field(default_factory=CriticSection, description="Nothing.")


def _baseline(inputs: AdvantageInput, params: NoParams) -> Advantages:
    return Advantages(values=inputs.rewards)


@pytest.fixture
def make(plan: MakePlan, registry: Registry) -> MakePlan:
    """Plans with a backend that acts on all of these keys; its section `critic` serves the column `values`."""
    registry.add(
        BackendPlugin(
            name="able",
            summary="For tests.",
            params=Sections,
            load=lambda: Backend,
            config_keys=frozenset({"rllm.algorithm.kl_beta", "rllm.algorithm.kl_estimator", f"{CORRECTION}.*"}),
            model_key="critic.clip",
            column_sections={"values": "critic"},
            capabilities=Capabilities(
                custom_losses=True, columns=frozenset({"old_logprobs", "ref_logprobs", "values"})
            ),
        )
    )
    registry.add(
        EstimatorPlugin(
            name="critical",
            summary="For tests.",
            params=NoParams,
            load=lambda: _baseline,
            needs=frozenset({"values"}),
        )
    )
    registry.add(
        LossPlugin(
            name="own",
            summary="For tests.",
            params=NoParams,
            load=lambda: lambda inputs, params: inputs.logprobs,
            corrects_rollouts=True,
        )
    )
    return lambda settings: plan({"rllm.backend": "able"} | settings)


def refusal(make: MakePlan, settings: dict[str, Any]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        make(settings)
    return caught.value


@pytest.mark.parametrize(
    ("settings", "code", "values"),
    [
        (
            {f"{CORRECTION}.tis_mode": "token", f"{CORRECTION}.bypass_mode": True},
            "unused-key",
            ['"token"', "bypass_mode"],
        ),
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
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_term_without_effect_is_refused(make: MakePlan, settings: dict[str, Any], code: str, values: list[str]) -> None:
    error = refusal(make, settings)
    check_error(error, code, next(iter(settings)), *values)
    assert error.hint


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
        ({"rllm.algorithm.loss_fn": "own"}, "loss 'own' applies"),
        ({"rllm.algorithm.loss_map": {"judge": "own"}}, "loss 'own' of role 'judge' applies"),
        (
            {"rllm.algorithm.loss_fn": "own", "rllm.algorithm.estimator_map": {"judge": "rloo"}},
            "loss 'own' applies",
        ),
    ],
)
def test_rollouts_are_not_corrected_twice(make: MakePlan, settings: dict[str, Any], losses: str) -> None:
    error = refusal(make, settings | {f"{CORRECTION}.tis_mode": "token"})
    check_error(error, "ratio-applied-twice", CORRECTION, "tis_mode", '"token"', "my.yaml", losses)
    assert make(settings).warnings == ()


@pytest.fixture
def stored(make: MakePlan, registry: Registry) -> MakePlan:
    """Plans on episodes of other weights."""
    registry.add(
        StagePlugin(
            name="old",
            summary="For tests.",
            params=NoParams,
            load=lambda: lambda context, params: None,
            reads=frozenset({"tasks"}),
            writes=frozenset({"episodes"}),
            off_policy=True,
        )
    )
    return lambda settings: make({"rllm.pipeline.replace": {"generate": "old"}} | settings)


@pytest.mark.parametrize("where", ["rllm.algorithm.loss_fn", "rllm.algorithm.loss_map.judge"])
def test_a_loss_without_a_ratio_needs_correction_for_old_rollouts(stored: MakePlan, where: str) -> None:
    error = refusal(stored, {where: "reinforce"})
    check_error(error, "loss-without-ratio", "'reinforce'", "'old'")
    assert stored({where: "reinforce", f"{CORRECTION}.tis_mode": "token"}).warnings == ()


def test_old_rollouts_have_ratios_to_what_sampled_them(stored: MakePlan) -> None:
    assert stored({}).off_policy
    assert "bypass_mode is false" in refusal(stored, {f"{CORRECTION}.bypass_mode": False}).message
    for settings in ({}, {f"{CORRECTION}.tis_mode": "sequence"}, {"rllm.algorithm.loss_fn": "own"}):
        assert stored(settings).warnings == ()


def test_old_rollouts_have_as_many_rollouts_as_there_are(stored: MakePlan) -> None:
    assert stored({}).warnings == ()
    with pytest.raises(ConfigError, match=r"rllm\.rollout\.n"):
        stored({"rllm.rollout.n": 4})


def test_k1_in_the_loss_is_warned_of(make: MakePlan) -> None:
    (warning,) = make({"rllm.algorithm.kl_beta": 0.1, "rllm.algorithm.kl_estimator": "k1"}).warnings
    check_values(warning, "rllm.algorithm.kl_estimator=k1", "k2", "k3")


def test_a_run_needs_what_its_plugins_and_terms_need(make: MakePlan) -> None:
    assert make({}).needs == frozenset()
    assert make({"rllm.algorithm.kl_beta": 0.1}).needs == {"ref_logprobs"}
    roles = {"rllm.algorithm.estimator_map": {"judge": "critical"}, "rllm.algorithm.kl_beta": 0.1}
    assert make(roles).needs == {"ref_logprobs", "values"}


def _reports_nothing_truncated(registry: Registry) -> None:
    registry.add(
        BackendPlugin(
            name="truncating",
            summary="For tests.",
            params=NoParams,
            load=lambda: Backend,
            config_keys=frozenset({f"{CORRECTION}.*"}),
            capabilities=Capabilities(custom_losses=True, columns=frozenset({"old_logprobs"}), full_logprobs=False),
        )
    )


def test_what_truncation_means_for_the_importance_ratio_is_said(make: MakePlan, registry: Registry) -> None:
    assert not [line for line in make({"sampling.train.temperature": 0.5}).warnings if "whole distributions" in line]
    (told,) = [line for line in make({"sampling.train.top_p": 0.9}).warnings if "sampling.train.top_p=0.9" in line]
    assert "sampler" in told
    _reports_nothing_truncated(registry)
    plan = make({"sampling.train.top_k": 5, "rllm.backend": "truncating"})
    (told,) = [line for line in plan.warnings if "sampling.train.top_k=5" in line]
    assert "trainer" in told


def test_rollout_correction_needs_a_sampler_that_reports_log_probs(make: MakePlan, registry: Registry) -> None:
    _reports_nothing_truncated(registry)
    settings = {"rllm.backend": "truncating", f"{CORRECTION}.tis_mode": "token"}
    assert make(settings)
    with expect_error(ConfigError, "missing-logprobs", "tis_mode=token", "'truncating'"):
        make(settings | {"sampling.train.top_p": 0.9})


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("of_engine", [True, False, None])
def test_whether_log_probs_are_before_truncation_is_said_by_what_samples(
    plan: MakePlan, own: bool, of_engine: bool | None
) -> None:
    made = plan()
    backend = replace(made.backend.plugin, capabilities=Capabilities(full_logprobs=own))
    engine: Any = None if of_engine is None else SimpleNamespace(plugin=SimpleNamespace(full_logprobs=of_engine))
    made = replace(made, backend=replace(made.backend, plugin=backend), engine=engine)
    assert made.full_logprobs is (own if of_engine is None else of_engine)
