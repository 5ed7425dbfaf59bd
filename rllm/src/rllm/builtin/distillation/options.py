"""Options of the stage `distill` and of its teachers, in a separate module so that listing plugins imports no numpy."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rllm_core.contracts.plugin import Params
from rllm_core.schema.section import Choice, Names


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
