"""Shared keys: settings that a backend stores under its own paths, with the same value as the core's key.

Priority, highest first: the core's value on the command line, then the native value there. The same order follows for
configuration files, for an environment's values and for packaged YAML. A null of the core keeps the native value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rllm.config.layers import Tier
from rllm.config.merge import MISSING, Merged
from rllm.config.paths import ABSENT, identical, put_at, split_key, value_at
from rllm.config.problems import show_value
from rllm.config.resolve import escape, is_from_environment, resolved_at
from rllm_core.contracts.backend import SharedKey


@dataclass(frozen=True)
class _Side:
    """One path's value, as the core spells it."""

    key: str
    value: Any
    """`ABSENT` where there is none, it is ``???``, or it is null."""
    tier: Tier
    origin: str
    given_null: bool = False
    """True if a user set it to null, or to the value that means the core's null."""

    @property
    def is_set(self) -> bool:
        return self.value is not ABSENT

    @property
    def by_user(self) -> bool:
        return self.is_set and self.tier >= Tier.USER

    def __str__(self) -> str:
        return f"`{self.key}` is {show_value(self.value)} (from {self.origin})"


def share_keys(merged: Merged, shared: Sequence[SharedKey]) -> list[str]:
    """Make all shared keys of `merged` agree. Returns warnings for the user."""
    if not shared:
        return []
    tree = resolved_at(
        merged, {split_key(key) for row in shared for key in (row.native, row.rllm, row.while_null or row.rllm)}
    )
    warnings: list[str] = []
    by_core_key: dict[str, list[SharedKey]] = {}
    for row in shared:
        by_core_key.setdefault(row.rllm, []).append(row)
    # Keys that others fall back on come first.
    for core_key, rows in sorted(by_core_key.items(), key=lambda item: any(row.while_null for row in item[1])):
        warnings += _agree(merged, tree, core_key, rows)
    return warnings


def put_shared(merged: Merged, shared: Sequence[SharedKey], core_key: str, value: Any, origin: str, tier: Tier) -> None:
    """Set a key of the core, and the native keys that share it."""
    merged.put(split_key(core_key), value, origin, tier)
    for row in shared:
        if row.rllm == core_key:
            merged.put(split_key(row.native), _native_spelling(value, row), origin, tier)


def _agree(merged: Merged, tree: dict[str, Any], core_key: str, rows: Sequence[SharedKey]) -> list[str]:
    core = _side(merged, tree, core_key, ())
    natives = [_side(merged, tree, row.native, row.spelled) for row in rows]
    own = [side for row, side in zip(rows, natives, strict=True) if not _is_idle(merged, tree, side, row)]
    # `max` keeps the first of equals: of several native keys in one tier the one named first counts.
    native = max(own, key=lambda side: side.tier, default=core)
    winner = native if not core.is_set or native.tier > core.tier else core
    if winner is not core:
        _put(merged, tree, core_key, winner.value, winner, f"{winner.origin}, by {winner.key}")
    for row, side in zip(rows, natives, strict=True):
        source = winner
        if not winner.is_set and row.while_null:
            source = _side(merged, tree, row.while_null, ())
        if not source.is_set:
            continue
        value = _native_spelling(source.value, row)
        if _bare(side.value) != _bare(source.value) or not identical(value_at(tree, split_key(row.native)), value):
            origin = side.origin if source is side else f"{source.origin}, by {source.key}"
            _put(merged, tree, row.native, value, source, origin)
    return [line for row, side in zip(rows, natives, strict=True) for line in _warnings(core, side, winner, row)]


def _is_idle(merged: Merged, tree: dict[str, Any], native: _Side, row: SharedKey) -> bool:
    """True if a native key has no value from a user.

    If null for the core's key means "same as another key", a packaged default is ignored. A value that an earlier
    sharing put there for such a null is ignored too.
    """
    if not native.is_set or row.while_null is None:
        return not native.is_set
    instead = _side(merged, tree, row.while_null, ())
    return native.tier is Tier.PACKAGED or identical(native.value, instead.value)


def _warnings(core: _Side, native: _Side, winner: _Side, row: SharedKey) -> Iterable[str]:
    if native.given_null and winner.is_set and native.tier >= winner.tier:
        yield f"`{native.key}` is null (from {native.origin}), but {winner}: the latter counts. Set only `{core.key}`."
    if not (native.by_user and winner.is_set):
        return
    if native is winner and core.by_user and _bare(core.value) != _bare(native.value):
        yield f"{core}, but {native}: the latter counts. Set only `{core.key}`."
    elif _bare(native.value) != _bare(winner.value):
        yield f"{native}, but {winner}: the latter counts. Set only `{core.key}`."
    elif row.deprecated:
        yield f"{native}, which is deprecated: set `{core.key}` instead."


def _side(merged: Merged, tree: dict[str, Any], key: str, spelled: Sequence[tuple[Any, Any]]) -> _Side:
    path = split_key(key)
    value = value_at(tree, path)
    for core_value, native_value in spelled:
        if identical(value, native_value):
            value = core_value
            break
    tier = merged.tier(path)
    given_null = value is None and tier >= Tier.USER
    if value is None or value == MISSING:
        value = ABSENT
    return _Side(key, value, tier, merged.origin(path), given_null)


def _native_spelling(value: Any, row: SharedKey) -> Any:
    value = _bare(value)
    for core_value, native_value in row.spelled:
        if identical(value, core_value):
            return native_value
    return value


def _bare(value: Any) -> Any:
    """Return a plugin choice in the form a backend uses: only the name. The options stay with the core's key."""
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        value = value["name"]
        return value.rpartition("/")[2]
    return value


def _put(merged: Merged, tree: dict[str, Any], key: str, value: Any, source: _Side, origin: str) -> None:
    path = split_key(key)
    written = value_at(merged.tree, split_key(source.key))
    merged.put(path, written if is_from_environment(written) else escape(value), origin, source.tier)
    put_at(tree, path, value)
