"""Every setting that can be decided is: keys without effect are known, and each key of verl's can be explained."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from expecting import expect_error

from rllm.config.compose import Composed
from rllm.config.unused import idle_reason
from rllm.inspection.explain import Explanation, explain_key
from rllm.planning.plan import RunPlan
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry
from rllm_verl.unused_keys import IDLE_KEYS

Plan = Callable[..., RunPlan]
Run = Callable[..., Composed]

CPU = "rllm.profile=cpu"


@pytest.mark.parametrize(
    ("key", "value", "origin", "acts"),
    [
        ("actor_rollout_ref.actor.optim.lr", "0.001", "recipe sum verl/tiny", "backend verl"),
        ("actor_rollout_ref.actor.clip_ratio", "0.2", "backend verl", "backend verl"),
        ("trainer.n_gpus_per_node", "1", "backend verl, profile cpu", "backend verl"),
        ("critic.optim.lr", "1e-05", "backend verl", "no plugin"),
    ],
)
def test_a_key_of_verls_is_explained(
    plan: Plan, registry: Registry, key: str, value: str, origin: str, acts: str
) -> None:
    found = explain_key(key, plan(CPU), registry)
    assert isinstance(found, Explanation)
    assert (found.facts["value"], found.facts["read by"]) == (f"{value} (from {origin})", acts)


def test_a_key_without_effect_is_explained_with_what_to_set_instead(plan: Plan, registry: Registry) -> None:
    found = explain_key("actor_rollout_ref.actor.grad_clip", plan(CPU), registry)
    assert isinstance(found, Explanation)
    assert found.facts["refused"] == "Set actor_rollout_ref.actor.optim.clip_grad."


def test_a_key_that_verl_does_not_know_cannot_be_explained(plan: Plan, registry: Registry) -> None:
    with expect_error(ConfigError, "unknown-key", "`nope`", "actor_rollout_ref.actor"):
        explain_key("actor_rollout_ref.actor.nope", plan(CPU), registry)


@pytest.mark.long
def test_every_key_that_is_named_as_idle_exists(run: Run) -> None:
    """With FSDP or with Megatron."""
    keys = {key for words in ((CPU,), ("rllm.profile=megatron",)) for key in _keys(run, *words)}
    for pattern in IDLE_KEYS:
        assert any(key == pattern or key.startswith(pattern.removesuffix("*")) for key in keys), pattern


def test_shared_keys_and_the_cores_own_are_never_idle(plan: Plan) -> None:
    backend = plan(CPU).backend.plugin
    assert all(idle_reason(backend, row.native) is None for row in backend.shared_keys)
    assert idle_reason(backend, "data.train_batch_size") is None


def _keys(run: Run, *words: str) -> list[str]:
    return list(run(*words).origins)
