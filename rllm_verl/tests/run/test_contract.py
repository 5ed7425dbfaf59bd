"""The contract of backends, on one worker and its rollout server."""

from __future__ import annotations

import pytest

from rllm.config.compose import compose
from rllm.config.layers import Tier, layer_from_dotted
from rllm_core.plugins.registry import Registry
from rllm_plugin_kit import BackendContract

CHOSEN = {
    "rllm.backend": "verl",
    "rllm.profile": "cpu",
    "actor_rollout_ref.actor.optim.lr": 1e-3,
    # Weights that decay change also where there is nothing to learn.
    "actor_rollout_ref.actor.optim.weight_decay": 0.0,
}


def options() -> dict[str, object]:
    """The backend's whole configuration with the profile `cpu`: verl's sections have no defaults of ours."""
    layer = layer_from_dotted(CHOSEN, "the contract", Tier.USER)
    return compose(Registry.load(), [layer]).backend_config.model_dump()


globals().update(BackendContract.for_each("rllm-verl", verl={"options": (options(),)}))
pytestmark = [pytest.mark.long, pytest.mark.usefixtures("ray_cluster"), pytest.mark.timeout(600)]
