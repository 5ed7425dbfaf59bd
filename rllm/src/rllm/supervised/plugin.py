"""The stages `examples` and `supervise`, and the loss `cross_entropy`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm.supervised.options import ExamplesParams
from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.stage import StagePlugin
from rllm_core.lazy import load_from


def losses() -> Iterable[LossPlugin[Any]]:
    yield LossPlugin(
        name="cross_entropy",
        summary="Imitates the trained tokens, without advantages. The loss of `rllm sft`.",
        load=load_from("rllm.supervised.loss", "cross_entropy"),
        has_ratio=False,
    )


def stages() -> Iterable[StagePlugin[Any]]:
    yield StagePlugin(
        name="examples",
        summary="Load rows of data to imitate instead of generating rollouts (`rllm sft`).",
        params=ExamplesParams,
        load=load_from("rllm.supervised.stages", "Examples"),
        reads=frozenset({"tasks"}),
        writes=frozenset({"episodes", "trajectory_names"}),
    )
    yield StagePlugin(
        name="supervise",
        summary="Mark all trained tokens as equally good, without rewards and advantages (`rllm sft`).",
        load=load_from("rllm.supervised.stages", "Supervise"),
        reads=frozenset({"batch"}),
        writes=frozenset({"batch.old_logprobs", "batch.advantages"}),
    )
