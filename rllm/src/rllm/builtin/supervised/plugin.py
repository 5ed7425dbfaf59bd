"""The stages `examples` and `supervise`, and the loss `cross_entropy`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.objective import ObjectivePlugin
from rllm_core.contracts.stage import StagePlugin
from rllm_core.lazy import call_lazily, load_from
from rllm_core.plugins import hookimpl

requires_api = 1

if TYPE_CHECKING:
    from torch import Tensor

    from rllm_core.contracts.loss import LossInput
    from rllm_core.contracts.params import NoParams


def cross_entropy(inputs: LossInput, params: NoParams) -> Tensor:
    """Return -logprob of each trained token, (n_sampled,), in nats. Advantages are not used."""
    return -inputs.logprobs


@hookimpl
def rllm_losses() -> Iterable[LossPlugin[Any]]:
    yield LossPlugin(
        name="cross_entropy",
        summary="Imitates the trained tokens, without advantages. The loss of `rllm sft`.",
        load=lambda: cross_entropy,
        has_ratio=False,
    )


@hookimpl
def rllm_stages() -> Iterable[StagePlugin[Any]]:
    yield StagePlugin(
        name="examples",
        summary="Load rows of data to imitate instead of generating rollouts (`rllm sft`).",
        load_params=load_from("rllm.builtin.supervised.turns", "ExamplesParams"),
        load=load_from("rllm.builtin.supervised.stages", "Examples"),
        reads=frozenset({"tasks"}),
        writes=frozenset({"episodes", "trajectory_names"}),
    )
    yield StagePlugin(
        name="supervise",
        summary="Mark all trained tokens as equally good, without rewards and advantages (`rllm sft`).",
        load=load_from("rllm.builtin.supervised.stages", "Supervise"),
        reads=frozenset({"batch"}),
        writes=frozenset({"batch.old_logprobs", "batch.advantages"}),
        check_plan=call_lazily("rllm.builtin.supervised.objective", "check_imitation"),
    )


@hookimpl
def rllm_objectives() -> Iterable[ObjectivePlugin]:
    yield ObjectivePlugin(
        name="sft",
        summary="Fine-tune on examples, without rewards (`rllm sft`).",
        load=load_from("rllm.builtin.supervised.objective", "ImitationObjective"),
        stage="rllm/supervise",
        defaults={
            "rllm.trainer.project_name": "rllm-sft",
            "rllm.algorithm.loss_fn": "cross_entropy",
            "rllm.algorithm.loss_agg_mode": "token-mean",
            "rllm.algorithm.kl_beta": 0.0,
            "rllm.pipeline.stages": ["examples", "group", "build_batch", "supervise", "update", "log"],
        },
    )
