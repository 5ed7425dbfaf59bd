"""The keys of Tinker clients."""

from __future__ import annotations

from rllm_core.errors import ConfigError
from rllm_serving.keys import KeyRule, check_binding

API = "/api/v1"
HEALTH = f"{API}/healthz"
FILES = f"{API}/files"
"""Path of downloads. They need no key, because their URLs are signed."""


def key_rule(key: str | None) -> KeyRule:
    """Make the rule for requests' keys. Clients must send `key`. None accepts any key."""
    return KeyRule(
        key=key,
        header="X-API-Key",
        variable="TINKER_API_KEY",
        example="tml-local",
        open_paths=(HEALTH, f"{FILES}/"),
    )


def check_key(host: str, key: str | None) -> None:
    """Raise ConfigError for a key that no client sends, and where other machines could reach a server without one."""
    check_binding(host, key_rule(key))
    if key is not None and not key.startswith(("tml-", "eyJ")):
        raise ConfigError(
            "bad-api-key",
            "The API key does not start with tml-, and Tinker clients refuse to send such a key.",
            "Use one like tml-SOMETHING-LONG-AND-RANDOM.",
        )
