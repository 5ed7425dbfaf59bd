"""Options of the reward ``judge``, and checks of them that need no network."""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from rllm.builtin.tasks.reward_options import RegexParams
from rllm_core.contracts.plugin import Params
from rllm_core.errors import ConfigError

PLACES = re.compile(r"\{(question|answer|response)\}")
PROMPT = """Question:
{question}

Right answer:
{answer}

Response to grade:
{response}

Is the response right? Explain in one sentence, then end with yes or no."""
OF_CLIENT = {"model", "messages", "stream"}
"""Fields of a request that other options set, or that cannot be set."""


def _is_address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it is not an address: write, for example, http://127.0.0.1:8000/v1")
    if parts.username or parts.password or parts.query:
        raise ValueError("do not put a key into the address: set api_key_env to an environment variable")
    return url.rstrip("/")


def _has_the_response(prompt: str) -> str:
    if "response" not in PLACES.findall(prompt):
        raise ValueError("it has no placeholder {response}")
    return prompt


def _leaves_out(body: dict[str, Any]) -> dict[str, Any]:
    if taken := sorted(OF_CLIENT & set(body)):
        raise ValueError(f"{', '.join(taken)} cannot be set here: use the other options of the judge")
    return body


class JudgeParams(Params):
    """Options of ``judge``."""

    url: Annotated[str, AfterValidator(_is_address)] = Field(
        description="Base URL of an OpenAI-compatible API, up to /v1. Requests go to URL/chat/completions."
    )
    model: str = Field(min_length=1, description="Name of the judge model at this API.")
    prompt: Annotated[str, AfterValidator(_has_the_response)] = Field(
        PROMPT,
        description="Prompt for the judge, with {question}, {answer} and {response}. Other braces stay unchanged.",
    )
    system_prompt: str | None = Field(None, description="System message for the judge.")
    column: str = Field("answer", min_length=1, description="Column for {answer}. Use dots for nested keys.")
    read: Literal["yes_no", "number", "regex", "json"] = Field(
        "yes_no",
        description="Part of the judge's response that is the score: yes (1) or no (0) at its end, after 'verdict:' or "
        "at its start, a number, the last match of `pattern`, or `field` of the last JSON object. The number is after "
        "'score', 'grade' or 'rating', before /`best` or 'out of' `best`, or the whole last line. A response with "
        "several such numbers has no score.",
    )
    pattern: str | None = Field(
        None, description=r"With read=regex: a group that matches a number, such as 'score: (\d+)'."
    )
    field: str | None = Field(
        None, min_length=1, description="With read=json: key of the number, true or false. Use dots for nested keys."
    )
    worst: float = Field(0.0, description="Number that means reward 0. A number outside worst and best is no score.")
    best: float = Field(1.0, description="Number that means reward 1.")
    solved_from: float | None = Field(
        None, gt=0, le=1, description="Minimum reward of a solved task. null: this reward does not report solved tasks."
    )
    api_key_env: str | None = Field(
        None, pattern=r"^[A-Za-z_]\w*$", description="Environment variable with the API key. null: no key is sent."
    )
    body: Annotated[dict[str, Any], AfterValidator(_leaves_out)] = Field(
        default_factory=lambda: {"temperature": 0.0, "max_tokens": 512},
        description="Additional fields of each request.",
    )
    timeout: float = Field(60.0, gt=0, le=600, description="Seconds that one request may take.")
    retries: int = Field(4, ge=0, le=20, description="Number of retries after a temporary failure.")
    backoff: float = Field(
        1.0, ge=0, le=60, description="Seconds before the second try. The wait doubles before each later try."
    )
    concurrency: int = Field(16, gt=0, le=1024, description="Maximum number of responses judged at the same time.")

    @property
    def asks_for_answer(self) -> bool:
        return "answer" in PLACES.findall(self.prompt)

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        for name, reader in (("pattern", "regex"), ("field", "json")):
            if (self.read == reader) != (getattr(self, name) is not None):
                raise ValueError(f"`{name}` goes with read={reader}, and read is {self.read}")
        if self.pattern is not None:
            RegexParams(pattern=self.pattern)
        if self.worst == self.best:
            raise ValueError("worst and best are the same number: set them to the two ends of the scale")
        return self


def check_judge(params: JudgeParams) -> None:
    """Check that the API key's environment variable is set.

    Raises:
        ConfigError: it is not set.
    """
    if params.api_key_env is not None and not os.environ.get(params.api_key_env, "").strip():
        raise ConfigError(
            "missing-api-key",
            f"Reward 'judge' reads its key from the environment variable {params.api_key_env}, which is not set.",
            f"export {params.api_key_env}=…, or remove api_key_env if the judge needs no key.",
        )
