"""Derived keys: backend keys whose values are computed from other keys, unless the user sets them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from rllm.config.layers import Tier
from rllm.config.merge import MISSING, Merged
from rllm.config.packaged import DEFAULT, fill_defaults
from rllm.config.paths import ABSENT, put_at, split_key, value_at
from rllm.config.problems import wrong_value
from rllm.config.resolve import escape, resolved_at
from rllm_core.contracts.backend import DerivedKey
from rllm_core.errors import ConfigError


def derive_keys(merged: Merged, derived: Sequence[DerivedKey], schema: type[BaseModel]) -> None:
    """Set the derived keys that have no value from the user.

    Args:
        schema: the backend's `params`. It provides values for the backend's keys that no layer sets.

    Raises:
        ConfigError: a value cannot be computed from the values of the other keys.
    """
    if not derived:
        return
    tree = resolved_at(merged, {split_key(key) for row in derived for key in (row.native, *row.of)})
    fill_defaults(tree, schema)
    for row in derived:
        path = split_key(row.native)
        if merged.tier(path) < Tier.SAVED:
            value = _derived(merged, tree, row)
            merged.put(path, escape(value), f"{' and '.join(row.of)}, by derivation", Tier.PACKAGED)
            put_at(tree, path, value)


def _derived(merged: Merged, tree: dict[str, Any], row: DerivedKey) -> Any:
    sources = {split_key(key): value_at(tree, split_key(key)) for key in row.of}
    sources = {path: None if value in (ABSENT, MISSING) else value for path, value in sources.items()}
    try:
        return row.derive(*sources.values())
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        # Values are validated later; these may be anything.
        given = ", ".join(
            wrong_value(path, value, merged.origin(path) or DEFAULT)
            if value is not None
            else f"`{'.'.join(path)}` is not set"
            for path, value in sources.items()
        )
        raise ConfigError("wrong-value", f"`{row.native}` cannot be derived, as {given}: {error}.") from error
