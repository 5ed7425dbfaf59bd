"""The config section of the backend `endpoint`."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class EndpointSection(_Section):
    url: str = "http://127.0.0.1:8000/v1"
    """Address of the server, including `/v1`."""
    model: str | None = None
    """Name of the model at the server. null: the only model that it lists."""
    api_key_env: str = "RLLM_API_KEY"
    """Environment variable with the API key. It is sent if it is set, and never stored."""
    max_concurrency: int = Field(32, gt=0)
    """Maximum number of concurrent requests."""
    timeout: float = Field(600.0, gt=0)
    """Seconds that one request may take."""
    retries: int = Field(5, ge=0)
    """Number of retries after status 429 or 5xx, a timeout or a lost connection."""
    backoff: float = Field(1.0, ge=0)
    """Seconds before the first retry. The wait doubles for each later retry."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Request field for the token limit. OpenAI's newer models need the second."""
    send_seed: bool = True
    """Send a `seed` with requests. Some servers reject it."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Additional fields of every request, such as `{reasoning_effort: low}`."""

    @field_validator("url")
    @classmethod
    def _plain_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it is not an address: write, for example, http://127.0.0.1:8000/v1")
        if parts.username or parts.password:
            raise ValueError("it contains a key, which would be stored: put the key into the variable of api_key_env")
        return url.rstrip("/")


class EndpointConfig(_Section):
    """The config sections of this backend."""

    endpoint: EndpointSection = Field(default_factory=EndpointSection)
