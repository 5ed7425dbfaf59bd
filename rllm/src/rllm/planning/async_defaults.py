"""Defaults of asynchronous training: rollouts from older weights are corrected unless the user sets otherwise.

Without correction, tokens sampled 4 updates earlier cost 18 of 42 points on AIME24. With correction they cost none
(AReaL, Fu et al. 2025, arXiv:2505.24298).
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

from rllm.config.compose import Composed
from rllm.config.layers import Tier
from rllm.config.paths import put_at, split_key
from rllm.planning.async_checks import BYPASS, THRESHOLD, TIS
from rllm.planning.plan import RunPlan
from rllm.planning.unused_keys import replace_value


def with_correction(plan: RunPlan) -> RunPlan:
    """Return the plan with decoupled PPO (Hilton et al. 2022, arXiv:2110.00641), unless the user set these keys.

    The trainer computes the old log-probs then. The ratio of these to the sampler's log-probs weights each token.
    Losses that use that ratio themselves get no second one.
    """
    composed = plan.composed
    config = plan.config.rllm
    if not config.async_training.staleness:
        return plan
    if not _is_set(composed, BYPASS):
        composed = _with_value(composed, BYPASS, False)
    correct_themselves = all(loss.plugin.corrects_rollouts for loss in plan.losses)
    if not _is_set(composed, TIS) and not composed.value(BYPASS) and not correct_themselves:
        composed = _with_value(composed, TIS, "token")
    return replace(plan, composed=composed)


def _is_set(composed: Composed, key: str) -> bool:
    """True if a user set the key, now or at an earlier start of the run."""
    return composed.tiers[key] >= Tier.SAVED


def _with_value(composed: Composed, key: str, value: Any) -> Composed:
    tree = deepcopy(composed.tree)
    put_at(tree, split_key(key), value)
    return replace(
        composed,
        config=replace_value(composed.config, split_key(key), value),
        tree=tree,
        origins={**composed.origins, key: THRESHOLD},
        tiers={**composed.tiers, key: Tier.PACKAGED},
    )
