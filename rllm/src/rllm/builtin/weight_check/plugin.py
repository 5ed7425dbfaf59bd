"""Plugin spec of the observer `weight_check`, which joins runs that generate rollouts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rllm_core.contracts.observer import ObserverPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

if TYPE_CHECKING:
    from rllm_core.schema.run_config import RunConfig

requires_api = 1
GENERATE = "generate"


def _samples(config: RunConfig) -> bool:
    """Return True if the run's stages generate rollouts."""
    stages = config.rllm.pipeline.stages
    return stages is None or any(
        (stage if isinstance(stage, str) else stage.get("name")) == GENERATE for stage in stages
    )


@hookimpl
def rllm_observers() -> Iterable[ObserverPlugin[Any]]:
    yield ObserverPlugin(
        name="weight_check",
        summary="Checks that the sampler has the trained weights. Added to all runs that generate rollouts.",
        load_params=load_from("rllm.builtin.weight_check.observer", "WeightCheckParams"),
        load=load_from("rllm.builtin.weight_check.observer", "WeightCheck"),
        joins=_samples,
    )
