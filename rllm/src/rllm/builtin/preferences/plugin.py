"""The stages `preferences` and `prefer`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm.builtin.preferences.options import PreferParams
from rllm.builtin.supervised.options import ExamplesParams
from rllm_core.contracts.objective import ObjectivePlugin
from rllm_core.contracts.stage import StagePlugin
from rllm_core.lazy import call_lazily, load_from
from rllm_core.plugins import hookimpl

requires_api = 1


@hookimpl
def rllm_stages() -> Iterable[StagePlugin[Any]]:
    yield StagePlugin(
        name="preferences",
        summary="Load better and worse completions instead of generating rollouts (`rllm prefer`).",
        params=ExamplesParams,
        load=load_from("rllm.builtin.preferences.stages", "Preferences"),
        reads=frozenset({"tasks"}),
        writes=frozenset({"episodes", "trajectory_groups", "preferences"}),
    )
    yield StagePlugin(
        name="prefer",
        summary="Compute each token's advantage from a loss of preferences: DPO, IPO or KTO (`rllm prefer`).",
        params=PreferParams,
        load=load_from("rllm.builtin.preferences.stages", "Prefer"),
        reads=frozenset({"batch", "preferences"}),
        writes=frozenset({"batch.old_logprobs", "batch.ref_logprobs", "batch.advantages"}),
        needs=frozenset({"ref_logprobs"}),
        check_plan=call_lazily("rllm.builtin.preferences.checks", "check_preferences"),
    )


@hookimpl
def rllm_objectives() -> Iterable[ObjectivePlugin]:
    yield ObjectivePlugin(
        name="prefer",
        summary="Learn from better and worse completions (`rllm prefer`).",
        load=load_from("rllm.builtin.preferences.objective", "Comparison"),
        stage="rllm/prefer",
        defaults={
            "rllm.trainer.project_name": "rllm-prefer",
            "rllm.algorithm.loss_fn": "reinforce",
            "rllm.algorithm.loss_agg_mode": "token-sum",
            "rllm.algorithm.kl_beta": 0.0,
            "rllm.pipeline.stages": ["preferences", "build_batch", "prefer", "update", "log"],
        },
    )
