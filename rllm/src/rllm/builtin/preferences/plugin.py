"""The stages and the objectives of `rllm prefer`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
        load_params=load_from("rllm.builtin.supervised.turns", "ExamplesParams"),
        load=load_from("rllm.builtin.preferences.stages", "Preferences"),
        reads=frozenset({"tasks"}),
        writes=frozenset({"episodes", "trajectory_groups", "preferences"}),
    )
    yield StagePlugin(
        name="prefer",
        summary="Compute each token's advantage from a loss of preferences: DPO, IPO or KTO (`rllm prefer`).",
        load_params=load_from("rllm.builtin.preferences.comparison", "PreferParams"),
        load=load_from("rllm.builtin.preferences.stages", "Prefer"),
        reads=frozenset({"batch", "preferences"}),
        writes=frozenset({"batch.old_logprobs", "batch.ref_logprobs", "batch.advantages"}),
        needs=frozenset({"ref_logprobs"}),
        check_plan=call_lazily("rllm.builtin.preferences.objective", "check_preferences"),
    )
    yield StagePlugin(
        name="reward_model",
        summary="Load pairs of completions, and compute the gradient of a reward model (`rllm prefer`).",
        load_params=load_from("rllm.builtin.preferences.comparison", "RewardModelParams"),
        load=load_from("rllm.builtin.preferences.stages", "LearnScores"),
        reads=frozenset({"tasks"}),
        writes=frozenset(
            {"episodes", "trajectory_groups", "batch", "preferences", "batch.old_logprobs", "batch.advantages"}
        ),
        needs=frozenset({"scores"}),
        check_plan=call_lazily("rllm.builtin.preferences.objective", "check_reward_model"),
    )


DEFAULTS = {
    "rllm.trainer.project_name": "rllm-prefer",
    "rllm.algorithm.loss_fn": "reinforce",
    "rllm.algorithm.loss_agg_mode": "token-sum",
    "rllm.algorithm.kl_beta": 0.0,
}
SHOWN = {"preference/loss": "loss", "preference/accuracy": "accuracy %"}


@hookimpl
def rllm_objectives() -> Iterable[ObjectivePlugin]:
    yield ObjectivePlugin(
        name="prefer",
        summary="Learn from better and worse completions (`rllm prefer`).",
        load=load_from("rllm.builtin.preferences.objective", "PreferenceObjective"),
        stage="rllm/prefer",
        defaults=DEFAULTS | {"rllm.pipeline.stages": ["preferences", "build_batch", "prefer", "update", "log"]},
        shown_metrics=SHOWN,
    )
    yield ObjectivePlugin(
        name="reward_model",
        summary="Train a reward model on pairs of completions (`rllm prefer --loss reward_model`).",
        load=load_from("rllm.builtin.preferences.objective", "RewardModelObjective"),
        stage="rllm/reward_model",
        defaults=DEFAULTS
        | {
            "rllm.trainer.project_name": "rllm-reward-model",
            "rllm.pipeline.stages": ["reward_model", "update", "log"],
            # The reward `model` also writes conversations with the model's own chat template.
            "rllm.renderer": "template",
        },
        shown_metrics=SHOWN,
    )
