"""Plugin specs of novelty-reward."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts import RewardPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1


@hookimpl
def rllm_rewards() -> Iterable[RewardPlugin[Any]]:
    yield RewardPlugin(
        name="novelty_reward",
        summary="Share of the other rollouts of the task with a different response.",
        load_params=load_from("novelty_reward.options", "NoveltyRewardParams"),
        load=load_from("novelty_reward.reward", "NoveltyReward"),
        scope="group",
        blocking=False,
    )
