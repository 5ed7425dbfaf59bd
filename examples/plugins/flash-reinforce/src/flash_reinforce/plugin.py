"""Plugin specs of flash-reinforce."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts import EstimatorPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1


@hookimpl
def rllm_estimators() -> Iterable[EstimatorPlugin[Any]]:
    yield EstimatorPlugin(
        name="flash_reinforce",
        summary="Reward minus the mean of the batch, without trajectories far from the sampler.",
        load_params=load_from("flash_reinforce.options", "FlashReinforceParams"),
        load=load_from("flash_reinforce.estimator", "flash_reinforce"),
        level="trajectory",
        scope="role",
        needs=frozenset({"old_logprobs", "sampling_logprobs"}),
        default_loss="ppo",
    )
