"""The API key, which comes from the environment and is never part of a configuration."""

from __future__ import annotations

import os
from pathlib import Path

from rllm_core.errors import ConfigError

VARIABLE = "TINKER_API_KEY"
OTHER_VARIABLE = "TINKER_CREDENTIAL_CMD"
STORED = Path("~/.tinker/credentials.json")
"""Where `tinker auth login` puts a key."""
PREFIXES = ("tml-", "eyJ")


def api_key_for(url: str) -> str | None:
    """The key for a service; None when the client has another place to take one from.

    Raises:
        ConfigError: there is none, or it cannot be one.
    """
    key = os.environ.get(VARIABLE, "").strip()
    if not key and (os.environ.get(OTHER_VARIABLE) or STORED.expanduser().is_file()):
        return None
    if not key:
        raise ConfigError(
            "missing-api-key",
            f"There is no API key for {url}: the environment variable {VARIABLE} is not set.",
            f"export {VARIABLE}=tml-…, or train offline with tinker_base_url=local.",
        )
    if not key.startswith(PREFIXES):
        raise ConfigError(
            "bad-api-key",
            f"The API key in {VARIABLE} is malformed: keys start with tml- (tokens with eyJ).",
            "Copy it again from the service's console; for a server of your own any key that starts with tml- will do "
            "unless it was given another.",
        )
    return key
