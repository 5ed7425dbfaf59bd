"""The config section ``endpoint``."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class EndpointSection(_Section):
    url: str = Field("http://127.0.0.1:8000/v1", description="Address of the server, up to and with `/v1`.")
    model: str | None = Field(None, description="Model to ask for; null means the only one that the server lists.")
    api_key_env: str = Field(
        "RLLM_API_KEY", description="Environment variable with the API key, sent where it is set and kept nowhere."
    )
    max_concurrency: int = Field(32, gt=0, description="Most requests at a time.")
    timeout: float = Field(600.0, gt=0, description="Seconds that one request may take.")
    retries: int = Field(
        5, ge=0, description="How often a request is sent again after 429, 5xx, a timeout or a lost connection."
    )
    backoff: float = Field(1.0, ge=0, description="Seconds before the first retry; doubled for each further one.")
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="Field of a request that limits the reply; OpenAI's newer models want the second."
    )
    send_seed: bool = Field(True, description="Whether requests have a `seed`; some servers refuse it.")
    extra_body: dict[str, Any] = Field(
        default_factory=dict, description="Further fields of every request, such as `{reasoning_effort: low}`."
    )

    @field_validator("url")
    @classmethod
    def _plain_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it is no address; write one such as http://127.0.0.1:8000/v1")
        if parts.username or parts.password:
            raise ValueError("it holds a key, which would be stored; put the key into the variable of api_key_env")
        return url.rstrip("/")


class EndpointConfig(_Section):
    """The backend's own part of the configuration."""

    endpoint: EndpointSection = Field(default_factory=EndpointSection)
