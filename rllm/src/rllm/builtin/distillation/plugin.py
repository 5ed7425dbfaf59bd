"""The stages `distill` and `topk_kl`, and the teachers `server`, `policy` and `by_source`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts.objective import ObjectivePlugin
from rllm_core.contracts.stage import StagePlugin
from rllm_core.contracts.teacher import TeacherPlugin
from rllm_core.lazy import call_lazily, load_from
from rllm_core.plugins import hookimpl

requires_api = 1


@hookimpl
def rllm_stages() -> Iterable[StagePlugin[Any]]:
    yield StagePlugin(
        name="distill",
        summary="Add log p(teacher) - log p(policy) to the advantage of each token (`--objective opd`).",
        load_params=load_from("rllm.builtin.distillation.stages", "DistillParams"),
        load=load_from("rllm.builtin.distillation.stages", "Distill"),
        reads=frozenset({"batch", "batch.old_logprobs"}),
        writes=frozenset({"batch.advantages"}),
        config_keys=frozenset({"rllm.teacher"}),
    )
    yield StagePlugin(
        name="topk_kl",
        summary="Train on the divergence from the teacher's likeliest tokens at each position (`--objective gkd`).",
        load_params=load_from("rllm.builtin.distillation.stages", "TopkKlParams"),
        load=load_from("rllm.builtin.distillation.stages", "TopkKl"),
        reads=frozenset({"batch"}),
        writes=frozenset({"batch.targets", "batch.advantages"}),
        config_keys=frozenset({"rllm.teacher"}),
        check_plan=call_lazily("rllm.builtin.distillation.stages", "check_topk_teachers"),
    )


@hookimpl
def rllm_objectives() -> Iterable[ObjectivePlugin]:
    rollouts = ("generate", "impute_names", "compact_filter", "group", "build_batch", "process")
    yield ObjectivePlugin(
        name="opd",
        summary="Distill a teacher: its log-probs replace rewards.",
        stage="rllm/distill",
        defaults={
            "rllm.pipeline.stages": [*rollouts, "distill", "update", "log"],
            "rllm.algorithm.loss_fn": "importance_sampling",
            "rllm.algorithm.loss_agg_mode": "token-mean",
        },
        shown_metrics={"distill/kl": "divergence"},
    )
    yield ObjectivePlugin(
        name="gkd",
        summary="Distill a teacher: the divergence from its likeliest tokens replaces rewards.",
        stage="rllm/topk_kl",
        defaults={
            "rllm.pipeline.stages": [*rollouts, "topk_kl", "update", "log"],
            "rllm.algorithm.loss_fn": "importance_sampling",
        },
        shown_metrics={"actor/target_divergence": "divergence"},
    )


@hookimpl
def rllm_teachers() -> Iterable[TeacherPlugin[Any]]:
    yield TeacherPlugin(
        name="server",
        summary="A server with vLLM's `prompt_logprobs`, such as `server:http://127.0.0.1:8000/v1`.",
        load_params=load_from("rllm.builtin.distillation.server", "ServerParams"),
        load=load_from("rllm.builtin.distillation.server", "ServerTeacher"),
        family_option="url",
        distributions=True,
    )
    yield TeacherPlugin(
        name="policy",
        summary="The trained model itself, with a system message for the teacher only, such as `policy:Be brief.`",
        load_params=load_from("rllm.builtin.distillation.policy", "PolicyParams"),
        load=load_from("rllm.builtin.distillation.policy", "PolicyTeacher"),
        family_option="prompt",
    )
    yield TeacherPlugin(
        name="by_source",
        summary="Several teachers, one for each data source of the tasks (`--teacher SOURCE=TEACHER`).",
        load_params=load_from("rllm.builtin.distillation.by_source", "BySourceParams"),
        load=load_from("rllm.builtin.distillation.by_source", "BySource"),
        check=call_lazily("rllm.builtin.distillation.by_source", "check"),
        sources=call_lazily("rllm.builtin.distillation.by_source", "read_sources"),
        check_tasks=call_lazily("rllm.builtin.distillation.by_source", "check_tasks"),
        distributions=True,
    )
