"""Chat messages."""

from __future__ import annotations

from collections.abc import Mapping

Message = Mapping[str, str]
"""A chat message: ``{"role": "user", "content": "lower"}``."""
