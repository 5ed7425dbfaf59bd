"""Options of the reward ``judge``, and what is seen to be wrong with them without a network."""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from rllm.tasks.reward_options import RegexParams
from rllm_core.contracts.plugin import Params
from rllm_core.errors import ConfigError

PLACES = re.compile(r"\{(question|answer|reply)\}")
PROMPT = """Question:
{question}

Right answer:
{answer}

Reply to grade:
{reply}

Is the reply right? Explain in one sentence, then end with yes or no."""
OF_CLIENT = {"model", "messages", "stream"}
"""Fields of a request that have options of their own, or none."""


def _is_address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it is no address: write http://127.0.0.1:8000/v1")
    if parts.username or parts.password or parts.query:
        raise ValueError("a key does not belong into the address: name an environment variable with api_key_env")
    return url.rstrip("/")


def _has_the_response(prompt: str) -> str:
    if "reply" not in PLACES.findall(prompt):
        raise ValueError("it has no place {reply}")
    return prompt


def _leaves_out(body: dict[str, Any]) -> dict[str, Any]:
    if taken := sorted(OF_CLIENT & set(body)):
        raise ValueError(f"{', '.join(taken)} cannot be set here: other options of the judge do")
    return body


class JudgeParams(Params):
    """Options of ``judge``."""

    url: Annotated[str, AfterValidator(_is_address)] = Field(
        description="Address of an API like OpenAI's, up to /v1; the judge answers at URL/chat/completions."
    )
    model: str = Field(min_length=1, description="The judge's name there.")
    prompt: Annotated[str, AfterValidator(_has_the_response)] = Field(
        PROMPT, description="What the judge is asked, with places {question}, {answer} and {reply}; other braces stay."
    )
    system_prompt: str | None = Field(None, description="System message for the judge.")
    column: str = Field("answer", min_length=1, description="Column that {answer} stands for; dots reach into it.")
    read: Literal["yes_no", "number", "regex", "json"] = Field(
        "yes_no",
        description="What of the judge's words is the score: the last yes (1) or no (0), the last number, the last "
        "match of `pattern`, or `field` of the last JSON object.",
    )
    pattern: str | None = Field(
        None, description=r"With read=regex: a group that matches a number, such as 'score: (\d+)'."
    )
    field: str | None = Field(
        None, min_length=1, description="With read=json: where the number, or true or false, is; dots reach into it."
    )
    worst: float = Field(0.0, description="Number that earns 0. Numbers outside of worst and best are no score.")
    best: float = Field(1.0, description="Number that earns 1.")
    solved_from: float | None = Field(
        None, gt=0, le=1, description="Reward from which a task counts as solved; null: this reward cannot tell."
    )
    api_key_env: str | None = Field(
        None, pattern=r"^[A-Za-z_]\w*$", description="Environment variable that holds the key; null: none is sent."
    )
    body: Annotated[dict[str, Any], AfterValidator(_leaves_out)] = Field(
        default_factory=lambda: {"temperature": 0.0, "max_tokens": 512},
        description="Further fields of each request.",
    )
    timeout: float = Field(60.0, gt=0, le=600, description="Seconds that one request may take.")
    retries: int = Field(4, ge=0, le=20, description="Further tries after a failure that may pass.")
    backoff: float = Field(
        1.0, ge=0, le=60, description="Seconds before the second try; twice as long before each further one."
    )
    concurrency: int = Field(16, gt=0, le=1024, description="Replies that are judged at once.")

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
            raise ValueError("worst and best are the same number; they are the two ends of the scale")
        return self


def check_judge(params: JudgeParams) -> None:
    """Look at the environment.

    Raises:
        ConfigError: the variable that holds the key is not set.
    """
    if params.api_key_env is not None and not os.environ.get(params.api_key_env, "").strip():
        raise ConfigError(
            "missing-api-key",
            f"Reward 'judge' takes its key from the environment variable {params.api_key_env}, which is not set.",
            f"export {params.api_key_env}=…, or leave api_key_env out where the judge asks for no key.",
        )
