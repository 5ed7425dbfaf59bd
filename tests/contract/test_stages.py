"""Every stage of ours is held to the contract of stages."""

from __future__ import annotations

from rllm_core.contracts.stage_context import StageContext
from rllm_plugin_kit import StageContract, stage_context

globals().update(StageContract.for_each("rllm-core"))


class TestGreedyBaselineThatIsNeeded(StageContract):
    name = "greedy_baseline"

    def context(self) -> StageContext:
        return stage_context(needs=frozenset({"greedy_rewards"}))
