"""Interpolations: ``${rllm.trainer.seed}`` takes the value of another key, ``${oc.env:HOME}`` of the environment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from rllm.config.layers import require_plain
from rllm.config.merge import MISSING, MergedValues
from rllm.config.paths import KeyPath, leaves, put_at, split_key, value_at
from rllm.config.problems import expected_mapping
from rllm_core.errors import ConfigError, RllmError

SHORTEST_SECRET = 4
"""Minimum length of a hidden value. A shorter value is not a secret, and hiding it would garble other text."""
CUT = 20
"""Minimum number of characters of a long value that a message shows."""


def resolve(merged: MergedValues) -> dict[str, Any]:
    """Return the tree with every interpolation replaced by its value. Raise ConfigError if a value is missing."""
    tree = resolve_interpolations(merged)
    missing = [path for path, value in leaves(tree, into_lists=True) if value == MISSING]
    if missing:
        lines = [f"`{'.'.join(path)}` must be given: it is `???` in {merged.origin(path)}." for path in missing]
        raise ConfigError("missing-key", "\n".join(lines), f"Set it, such as {'.'.join(missing[0])}=VALUE.")
    return tree


def resolve_interpolations(merged: MergedValues) -> dict[str, Any]:
    """Return the tree with every interpolation replaced. A ``???`` stays unless an interpolation points to it."""
    if not any(isinstance(value, str) and "${" in value for _, value in leaves(merged.tree, into_lists=True)):
        return merged.tree
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        tree = OmegaConf.to_container(OmegaConf.create(merged.tree), resolve=True)
    except OmegaConfBaseException as error:
        raise _interpolation_error(merged, error.full_key or "", str(error).partition("\n")[0]) from error
    except RecursionError:
        raise ConfigError(
            "bad-interpolation", "An interpolation is nested too deeply.", "Write the value itself instead of ${KEY}."
        ) from None
    assert isinstance(tree, dict)
    plain: dict[str, Any] = {str(key): value for key, value in tree.items()}
    require_plain(plain, "interpolations")
    return plain


def selected_value(merged: MergedValues, key: str) -> Any:
    """Return the value of a key before everything is resolved. None if it has no value yet."""
    node: Any = merged.tree
    path = split_key(key)
    for depth, part in enumerate(path):
        if not isinstance(node, dict):
            raise expected_mapping(path[:depth], node, merged.origin(path[:depth]))
        if part not in node:
            return None
        node = node[part]
        if isinstance(node, str) and "${" in node:
            return selected_value(MergedValues(resolve_interpolations(merged), merged.marks), key)
    return None if node == MISSING else node


def resolved_at(merged: MergedValues, keys: Iterable[KeyPath]) -> dict[str, Any]:
    """Return a copy of the tree in which the values of these keys are resolved. Others may be unresolved.

    Another system's configuration may contain hundreds of interpolations, and resolving these is very slow.
    """
    if any(_is_open(merged.tree, path) for path in keys):
        return deepcopy(resolve_interpolations(merged))
    return deepcopy(merged.tree)


def is_from_environment(written: Any) -> bool:
    """True if a value, in its unresolved form, uses an environment variable."""
    return "${oc.env:" in str(written)


def from_environment(merged: MergedValues, resolved: Mapping[str, Any]) -> dict[KeyPath, tuple[Any, Any]]:
    """Return values that contain environment variables, also through other keys: unresolved and resolved.

    They may be secrets. The unresolved text has the same meaning, because it is read at the same place.
    """
    if not is_from_environment(merged.tree):
        return {}
    written = {path: value for path, value in leaves(merged.tree) if "${" in str(value)}
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


def escape(value: Any) -> Any:
    """Write resolved values so that reading them resolves nothing again: ``${`` becomes ``\\${``."""
    if isinstance(value, dict):
        return {key: escape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [escape(item) for item in value]
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    return value


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


def _is_open(tree: Any, path: KeyPath) -> bool:
    """True if the value of a key contains an interpolation, or a section above it is one."""
    for part in path:
        if not isinstance(tree, dict):
            break
        tree = tree.get(part)
    return any(isinstance(value, str) and "${" in value for _, value in leaves({"": tree}, into_lists=True))


def _interpolation_error(merged: MergedValues, full_key: str, reason: str) -> ConfigError:
    path = tuple(part for part in re.split(r"[.\[\]]+", full_key) if part)
    value: Any = merged.tree
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal():
            # The failing item may be in a list that an interpolation resolves to, and not in this list.
            value = dict(enumerate(value)).get(int(part))
    shown = f" is `{value}`" if isinstance(value, str) else ""
    return ConfigError(
        "bad-interpolation",
        f"`{full_key}`{shown} (from {merged.origin(path)}), which cannot be resolved: {reason}.",
        "An interpolation names another key, such as ${rllm.trainer.seed}; write \\${ for the characters themselves.",
    )


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
