"""`rllm config explain` for keys of verl."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from expecting import expect_error

from rllm.inspection.explain import Explanation, explain_key
from rllm.planning.plan import RunPlan
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry

Plan = Callable[..., RunPlan]
CPU = "rllm.profile=cpu"


@pytest.mark.parametrize(
    ("key", "facts"),
    [
        ("actor_rollout_ref.actor.optim.lr", {"value": "0.001 (from recipe sum verl/tiny)", "read by": "backend verl"}),
        ("trainer.n_gpus_per_node", {"value": "1 (from backend verl, profile cpu)", "read by": "backend verl"}),
        ("critic.optim.lr", {"value": "1e-05 (from backend verl)", "read by": "no plugin"}),
        ("actor_rollout_ref.actor.grad_clip", {"refused": "Set actor_rollout_ref.actor.optim.clip_grad."}),
    ],
)
def test_key_is_explained(plan: Plan, registry: Registry, key: str, facts: dict[str, str]) -> None:
    found = explain_key(key, plan(CPU), registry)
    assert isinstance(found, Explanation)
    assert facts.items() <= found.facts.items()


def test_a_key_that_verl_does_not_know_cannot_be_explained(plan: Plan, registry: Registry) -> None:
    with expect_error(ConfigError, "unknown-key", "`nope`", "actor_rollout_ref.actor"):
        explain_key("actor_rollout_ref.actor.nope", plan(CPU), registry)
