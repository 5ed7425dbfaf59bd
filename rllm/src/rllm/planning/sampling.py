"""Make the sampler of a run."""

from __future__ import annotations

from collections.abc import Sequence

from rllm.planning.plan import RunPlan
from rllm_core.contracts.sampler import Sampler, SamplerSetup
from rllm_core.data.types import Task
from rllm_core.errors import PluginError, failures_as


def make_sampler(plan: RunPlan, tasks: Sequence[Task]) -> Sampler:
    """Return the plan's sampler for these training tasks.

    Raises:
        ConfigError: the sampler cannot sample from these tasks.
        PluginError: the sampler failed.
    """
    chosen = plan.sampler
    setup = SamplerSetup(tasks=tasks, batch_size=plan.max_batch_tasks(len(tasks)), seed=plan.config.rllm.trainer.seed)
    with failures_as(PluginError, f"Sampler {chosen.qualified_name}"):
        made = chosen.registered.load()(chosen.params, setup)
    if not isinstance(made, Sampler):
        raise PluginError(
            "bad-sampler-result",
            f"Sampler {chosen.qualified_name} makes {made!r:.80}.",
            "Derive its class from `rllm_core.contracts.Sampler`.",
        )
    return made
