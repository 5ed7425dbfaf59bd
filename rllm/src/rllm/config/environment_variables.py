"""Values from environment variables, which may be secrets: saved configurations and errors show them as written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rllm.config.paths import KeyPath, leaves, put_at, value_at
from rllm.config.values import escape, is_from_environment
from rllm_core.errors import RllmError

SHORTEST_SECRET = 4
"""Minimum length of a hidden value. A shorter value is not a secret, and hiding it would garble other text."""
CUT = 20
"""Minimum number of characters of a long value that a message shows."""


def from_environment(tree: dict[str, Any], resolved: Mapping[str, Any]) -> dict[KeyPath, tuple[Any, Any]]:
    """Return values that contain environment variables, also through other keys: unresolved and resolved.

    They may be secrets. The unresolved text has the same meaning, because it is read at the same place.
    """
    if not is_from_environment(tree):
        return {}
    written = {path: value for path, value in leaves(tree) if "${" in str(value)}
    pairs = {path: (value, value_at(resolved, path)) for path, value in written.items()}
    secrets = {
        str(secret)
        for value, result in pairs.values()
        if is_from_environment(value)
        for _, secret in leaves({"": result}, into_lists=True)
    } - {""}
    return {
        path: (value, result)
        for path, (value, result) in pairs.items()
        if is_from_environment(value) or any(secret in str(result) for secret in secrets)
    }


def format_tree(tree: Mapping[str, Any], from_environment: Mapping[KeyPath, tuple[Any, Any]]) -> dict[str, Any]:
    """Return a resolved tree as it may be saved and shown.

    Values from environment variables appear as the user wrote them, such as ``${oc.env:KEY}``. Other text that looks
    like an interpolation is escaped.
    """
    written: dict[str, Any] = escape(tree)
    for path, (text, value) in from_environment.items():
        if value_at(tree, path) == value:
            put_at(written, path, text)
    return written


@contextmanager
def hide_environment(values: Mapping[KeyPath, tuple[Any, Any]]) -> Iterator[None]:
    """Show the user's unresolved text instead of environment variables in rllm's errors, because they may be secrets.

    Args:
        values: the result of `from_environment`.
    """
    try:
        yield
    except RllmError as error:
        for written, resolved in values.values():
            given = (text for _, text in leaves({"": written}, into_lists=True))
            secrets = (text for _, text in leaves({"": resolved}, into_lists=True))
            for text, secret in zip(given, secrets, strict=False):
                _replace(error, str(secret), str(text))
        raise


def _replace(error: RllmError, secret: str, text: str) -> None:
    if len(secret) < SHORTEST_SECRET or secret == text:
        return
    cut = f"|{re.escape(secret[:CUT])}[^…]*…" if len(secret) > CUT else ""
    shown = re.compile(re.escape(secret) + cut)
    error.message = shown.sub(lambda _: text, error.message)
    error.hint = shown.sub(lambda _: text, error.hint)
    error.args = (error.code, error.message, error.hint, error.details)
