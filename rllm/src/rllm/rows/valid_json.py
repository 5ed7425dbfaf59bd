"""JSON with characters that are not valid Unicode, such as half of an emoji or a file name that is not UTF-8."""

from __future__ import annotations

import json
import re
from typing import Any

from rllm_core.rollout.control_tokens import join_surrogates

SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half of a character in JSON. Without its other half, it is not valid Unicode."""


def has_surrogates(data: bytes) -> bool:
    """Return True if JSON has halves of characters. Usually these are pairs, which are valid."""
    return SURROGATE.search(data) is not None


def with_valid_text(value: Any) -> Any:
    """Return JSON data in which each character that is not valid Unicode is U+FFFD. See `join_surrogates`."""
    return json.loads(join_surrogates(json.dumps(value, ensure_ascii=False)))
