"""Plans of updates by the Tinker API, for the roles `solver` and `judge`."""

from __future__ import annotations

from functools import cache
from typing import Any

from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.loss import LossPlugin
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry


@cache
def _installed() -> Registry:
    return Registry.load()


def loss_choice(choice: Any) -> PluginChoice[LossPlugin[Any]]:
    return choose(_installed(), "loss", choice, "test")


def plan_of(loss: Any, judge: Any = None, **fields: Any) -> UpdatePlan:
    """Return a plan with one loss for every role of `batch`, or with `judge` for the role `judge`."""
    chosen = loss_choice(loss)
    losses = {"solver": chosen, "judge": chosen if judge is None else loss_choice(judge)}
    fields = {"global_step": 0, "aggregation": "token-mean", "entropy_coeff": 0.0, "seed": 3} | fields
    return UpdatePlan(losses=losses, **fields)
