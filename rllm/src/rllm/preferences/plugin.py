"""The stages `preferences` and `prefer`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm.preferences.options import PreferParams
from rllm.supervised.options import ExamplesParams
from rllm_core.contracts.stage import StagePlugin
from rllm_core.lazy import load_from


def stages() -> Iterable[StagePlugin[Any]]:
    yield StagePlugin(
        name="preferences",
        summary="Load better and worse completions instead of generating rollouts (`rllm prefer`).",
        params=ExamplesParams,
        load=load_from("rllm.preferences.stages", "Preferences"),
        reads=frozenset({"tasks"}),
        writes=frozenset({"episodes", "trajectory_groups", "preferences"}),
    )
    yield StagePlugin(
        name="prefer",
        summary="Compute each token's advantage from a loss of preferences: DPO, IPO or KTO (`rllm prefer`).",
        params=PreferParams,
        load=load_from("rllm.preferences.stages", "Prefer"),
        reads=frozenset({"batch", "preferences"}),
        writes=frozenset({"batch.old_logprobs", "batch.ref_logprobs", "batch.advantages"}),
    )
