"""Settings that `--dry-run` recommends for runs with older tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from scripted_world import ahead

from rllm.cli.dry_run import list_recommendations
from rllm.config.compose import compose
from rllm.config.layers import layer_from_keys
from rllm.planning.async_training import recommend
from rllm.planning.plan import RunPlan
from rllm.planning.planner import make_plan
from rllm_core.plugins.registry import Registry

Plan = Callable[[Mapping[str, Any]], RunPlan]
CORRECTION = "rllm.algorithm.rollout_correction"
THRESHOLD = "rllm.async_training.staleness_threshold"


def settings_for(plan: RunPlan) -> dict[str, Any]:
    return {each.key: each.value for each in recommend(plan)}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        (ahead(1), {f"{CORRECTION}.tis_cap": 5.0}),
        (ahead(4), {f"{CORRECTION}.tis_cap": 5.0}),
        (ahead(5), {THRESHOLD: 4, f"{CORRECTION}.tis_cap": 5.0}),
        ({**ahead(1), f"{CORRECTION}.tis_cap": 3.0}, {}),
        ({**ahead(1), "rllm.algorithm.loss_fn": "dppo_tv"}, {}),
        (
            {**ahead(1), f"{CORRECTION}.tis_mode": None},
            {f"{CORRECTION}.tis_mode": "token", f"{CORRECTION}.tis_cap": 5.0},
        ),
    ],
)
def test_recommended_settings_depend_on_staleness(
    planned: Plan, settings: Mapping[str, Any], expected: dict[str, Any]
) -> None:
    assert settings_for(planned(settings)) == expected


@pytest.mark.parametrize(("staleness", "rate", "epochs"), [(2, 0.0007, None), (4, 0.00045, 400)])
def test_older_tokens_need_smaller_rate_and_more_steps(staleness: int, rate: float, epochs: int | None) -> None:
    installed = Registry.load()
    layer = layer_from_keys({"rllm.env.name": "guess", "rllm.backend": "local", **ahead(staleness)}, "the test")
    settings = settings_for(make_plan(compose(installed, [layer]), installed))
    assert settings["training.learning_rate"] == rate
    assert settings.get("rllm.trainer.total_epochs") == epochs


def test_recommended_settings_are_accepted_and_enough(planned: Plan) -> None:
    settings = ahead(5)
    assert settings_for(planned(settings | settings_for(planned(settings)))) == {}


def test_dry_run_shows_keys_to_type(planned: Plan) -> None:
    lines = list(list_recommendations(planned(ahead(5))))
    assert lines[0].startswith("\nRecommended")
    assert [line.split()[0] for line in lines[1:]] == [f"{THRESHOLD}=4", f"{CORRECTION}.tis_cap=5.0"]
