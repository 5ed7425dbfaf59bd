"""The stages `distill` and `topk_kl`, and the teachers `server`, `policy` and `by_source`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field

from rllm_core.contracts.objective import ObjectivePlugin
from rllm_core.contracts.plugin import Params
from rllm_core.contracts.stage import StagePlugin
from rllm_core.contracts.teacher import TeacherPlugin
from rllm_core.lazy import call_lazily, load_from
from rllm_core.plugins import hookimpl
from rllm_core.schema.section import Choice, Names

requires_api = 1


class DistillParams(Params):
    """Options of the stage ``distill``."""

    weight: float = Field(1.0, gt=0, description="Factor of the teacher's part of each advantage.")


class TopkKlParams(Params):
    """Options of the stage ``topk_kl``."""

    k: int | None = Field(
        20,
        gt=0,
        description="Number of the teacher's likeliest tokens at each position. null: the whole vocabulary, which only "
        "the teacher `model` has.",
    )
    beta: float = Field(
        0.5,
        ge=0,
        le=1,
        description="The divergence. 0: forward KL (teacher to policy). 1: reverse KL (policy to teacher). Between: "
        "generalized Jensen-Shannon divergence.",
    )
    weight: float = Field(1.0, gt=0, description="Factor of the mean divergence in the loss.")


class ServerParams(Params):
    """Options of the teacher ``server``."""

    url: str = Field(description="Address of the server, with `/v1`.", pattern="^https?://.")
    model: str | None = Field(None, description="Name of the model at the server. null: the only model that it lists.")
    api_key_env: str = Field(
        "RLLM_API_KEY", description="Environment variable with the API key. It is sent if it is set, and never stored."
    )
    max_concurrency: int = Field(32, gt=0, description="Maximum number of concurrent requests.")
    timeout: float = Field(600.0, gt=0, description="Seconds that one request may take.")
    retries: int = Field(5, ge=0, description="Number of retries after status 429 or 5xx, or a lost connection.")


class PolicyParams(Params):
    """Options of the teacher ``policy``."""

    prompt: str = Field(
        description="Text that only the teacher reads: a system message, or the start of the prompt's system message.",
        min_length=1,
    )


class BySourceParams(Params):
    """Options of the teacher ``by_source``."""

    teachers: Annotated[dict[str, Choice], Names("teacher")] = Field(
        min_length=1,
        description="A teacher for each data source of the tasks: a name, or a mapping with a name and options. For "
        "example `{math: {name: model, path: ./math}, code: policy:Be brief.}`.",
    )


@hookimpl
def rllm_stages() -> Iterable[StagePlugin[Any]]:
    yield StagePlugin(
        name="distill",
        summary="Add log p(teacher) - log p(policy) to the advantage of each token (`--objective opd`).",
        params=DistillParams,
        load=load_from("rllm.builtin.distillation.stages", "Distill"),
        reads=frozenset({"batch", "batch.old_logprobs"}),
        writes=frozenset({"batch.advantages"}),
        config_keys=frozenset({"rllm.teacher"}),
    )
    yield StagePlugin(
        name="topk_kl",
        summary="Train on the divergence from the teacher's likeliest tokens at each position (`--objective gkd`).",
        params=TopkKlParams,
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
        params=ServerParams,
        load=load_from("rllm.builtin.distillation.server", "ServerTeacher"),
        family_option="url",
        distributions=True,
    )
    yield TeacherPlugin(
        name="policy",
        summary="The trained model itself, with a system message for the teacher only, such as `policy:Be brief.`",
        params=PolicyParams,
        load=load_from("rllm.builtin.distillation.policy", "PolicyTeacher"),
        family_option="prompt",
    )
    yield TeacherPlugin(
        name="by_source",
        summary="Several teachers, one for each data source of the tasks (`--teacher SOURCE=TEACHER`).",
        params=BySourceParams,
        load=load_from("rllm.builtin.distillation.by_source", "BySource"),
        check=call_lazily("rllm.builtin.distillation.by_source", "check"),
        sources=call_lazily("rllm.builtin.distillation.by_source", "read_sources"),
        check_tasks=call_lazily("rllm.builtin.distillation.by_source", "check_tasks"),
        distributions=True,
    )
