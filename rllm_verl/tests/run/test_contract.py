"""The contract of backends, on one worker and its rollout server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rllm.config.compose import compose
from rllm.config.layers import Tier, layer_from_keys
from rllm_core.plugins.registry import Registry
from rllm_plugin_kit import BackendContract

CHOSEN = {
    "rllm.backend": "verl",
    "rllm.profile": "cpu",
    "actor_rollout_ref.actor.optim.lr": 1e-3,
    # Weights that decay change also where there is nothing to learn.
    "actor_rollout_ref.actor.optim.weight_decay": 0.0,
}


class TestVerl(BackendContract):
    name = "rllm-verl/verl"
    options = (CHOSEN,)

    def params_from(self, options: Mapping[str, Any]) -> Any:
        """Validate the whole configuration with the profile `cpu`, because rllm has no defaults for verl's sections."""
        layer = layer_from_keys(dict(options), "the contract", Tier.USER)
        return super().params_from(compose(Registry.load(), [layer]).backend_config.model_dump())


pytestmark = [pytest.mark.long, pytest.mark.usefixtures("ray_cluster"), pytest.mark.timeout(600)]
