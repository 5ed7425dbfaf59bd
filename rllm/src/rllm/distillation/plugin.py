"""The stages `distill` and `topk_kl`, and the teachers `server`, `policy` and `by_source`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm.distillation.options import BySourceParams, DistillParams, PolicyParams, ServerParams, TopkKlParams
from rllm_core.contracts.stage import StagePlugin
from rllm_core.contracts.teacher import TeacherPlugin
from rllm_core.lazy import load_from


def _check_by_source(params: BySourceParams) -> None:
    from rllm.distillation.by_source import check

    check(params)


def _sources_of_teachers(params: BySourceParams) -> dict[str, str]:
    from rllm.distillation.by_source import read_sources

    return read_sources(params)


def stages() -> Iterable[StagePlugin[Any]]:
    yield StagePlugin(
        name="distill",
        summary="Add log p(teacher) - log p(policy) to the advantage of each token (`--objective opd`).",
        params=DistillParams,
        load=load_from("rllm.distillation.stage", "Distill"),
        reads=frozenset({"batch", "batch.old_logprobs"}),
        writes=frozenset({"batch.advantages"}),
        config_keys=frozenset({"rllm.teacher"}),
    )
    yield StagePlugin(
        name="topk_kl",
        summary="Train on the divergence from the teacher's likeliest tokens at each position (`--objective gkd`).",
        params=TopkKlParams,
        load=load_from("rllm.distillation.topk_stage", "TopkKl"),
        reads=frozenset({"batch"}),
        writes=frozenset({"batch.targets", "batch.advantages"}),
        config_keys=frozenset({"rllm.teacher"}),
    )


def teachers() -> Iterable[TeacherPlugin[Any]]:
    yield TeacherPlugin(
        name="server",
        summary="A server with vLLM's `prompt_logprobs`, such as `server:http://127.0.0.1:8000/v1`.",
        params=ServerParams,
        load=load_from("rllm.distillation.server", "ServerTeacher"),
        family_option="url",
        distributions=True,
    )
    yield TeacherPlugin(
        name="policy",
        summary="The trained model itself, with a system message for the teacher only, such as `policy:Be brief.`",
        params=PolicyParams,
        load=load_from("rllm.distillation.policy", "PolicyTeacher"),
        family_option="prompt",
    )
    yield TeacherPlugin(
        name="by_source",
        summary="Several teachers, one for each data source of the tasks (`--teacher SOURCE=TEACHER`).",
        params=BySourceParams,
        load=load_from("rllm.distillation.by_source", "BySource"),
        check=_check_by_source,
        sources=_sources_of_teachers,
        distributions=True,
    )
