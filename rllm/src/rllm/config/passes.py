"""Passes over merged values, from sharing keys to checks, see `run_passes`.

Shared keys are settings that a backend stores under its own paths, with the same value as the core's key. Priority,
highest first: the core's value on the command line, then the native value there. The same order follows for
configuration files, for an environment's values and for packaged YAML. A null of the core keeps the native value.
Derived keys are backend keys whose values are computed from other keys, unless the user sets them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from rllm.config.keys import value_keys
from rllm.config.layers import Tier
from rllm.config.merge import MISSING, MergedValues
from rllm.config.packaged import DEFAULT, base_layer, fill_defaults
from rllm.config.paths import ABSENT, identical, leaves, put_at, split_key, value_at
from rllm.config.problems import show_value, typed_value, wrong_value
from rllm.config.resolve import escape, is_from_environment, resolved_at, selected_value
from rllm_core.contracts.backend import DerivedKey, SharedKey
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig


def run_passes(merged: MergedValues, registry: Registry, backend: Any, decided: Mapping[str, str]) -> MergedValues:
    """Run the passes of a run, in order.

    Args:
        merged: values of all layers.
        registry: the run's plugins.
        backend: its plugin spec.
        decided: the choices for which layers were merged, by dotted key.
    """
    merged = share_keys(merged, backend.shared_keys)
    merged = choose_length(merged, backend.shared_keys)
    merged = derive_keys(merged, backend.derived_keys, backend.params)
    check_choices(merged, decided)
    require_own_sections(merged, backend, registry)
    return merged


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


def share_keys(merged: MergedValues, shared: Sequence[SharedKey]) -> MergedValues:
    """Make all shared keys agree. The result has warnings for the user."""
    if not shared:
        return merged
    merged = merged.copy()
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
    return replace(merged, warnings=(*merged.warnings, *warnings))


def choose_length(merged: MergedValues, shared: Sequence[SharedKey]) -> MergedValues:
    """Use either epochs or steps: of the two keys for the length of a run, only the one from the higher tier applies.

    The core's key and the backend's native key for the same setting agree already, and this keeps them equal.
    """
    epochs, batches = "rllm.trainer.total_epochs", "rllm.trainer.total_batches"
    if selected_value(merged, batches) == -1:
        return merged
    merged = merged.copy()
    by_epochs, by_batches = (merged.tier(split_key(key)) for key in (epochs, batches))
    if by_epochs > by_batches:
        _put_both(merged, shared, batches, -1, merged.origin(split_key(epochs)), by_epochs)
    elif by_batches > by_epochs:
        _put_both(merged, shared, epochs, value_at(base_layer().tree, split_key(epochs)), DEFAULT, Tier.PACKAGED)
    return merged


def derive_keys(merged: MergedValues, derived: Sequence[DerivedKey], schema: type[BaseModel]) -> MergedValues:
    """Set the derived keys that have no value from the user.

    Args:
        schema: the backend's `params`. It provides values for the backend's keys that no layer sets.

    Raises:
        ConfigError: a value cannot be computed from the values of the other keys.
    """
    if not derived:
        return merged
    merged = merged.copy()
    tree = resolved_at(merged, {split_key(key) for row in derived for key in (row.native, *row.of)})
    fill_defaults(tree, schema)
    for row in derived:
        path = split_key(row.native)
        if merged.tier(path) < Tier.SAVED:
            value = _derive(merged, tree, row)
            merged.put(path, escape(value), f"{' and '.join(row.of)}, by derivation", Tier.PACKAGED)
            put_at(tree, path, value)
    return merged


def check_choices(merged: MergedValues, decided: Mapping[str, str]) -> None:
    """Check that the choices made from the user's layers are unchanged. If not, the wrong layers were merged."""
    for key, value in decided.items():
        if (now := selected_value(merged, key)) != value:
            origin = merged.origin(split_key(key))
            raise ConfigError(
                "backend-mismatch",
                f"`{key}` is {value!r} by the user's choice, but {origin} sets it to {now!r}.",
                "Only a configuration file or the command line may choose it.",
            )


def require_own_sections(merged: MergedValues, backend: Any, registry: Registry) -> None:
    """Check that each section belongs to this run.

    Raises:
        ConfigError: a section lacks the prefix ``rllm.``, or belongs to a different backend.
    """
    values = value_keys(RunConfig)
    for key, value in merged.tree.items():
        if key in RunConfig.model_fields or key in backend.params.model_fields:
            continue
        # This comes first even if a different backend has the section, because the keys may be the core's.
        given = [(("rllm", *path), leaf) for path, leaf in leaves({key: value})]
        if meant := [
            f"{'.'.join(path)}{typed_value(leaf)}"
            for path, leaf in given
            if any(path[:depth] in values for depth in range(len(path) + 1))
        ]:
            raise ConfigError(
                "unknown-key",
                f"`{key}` (from {merged.origin((key,))}) is not a section of a run with backend {backend.name}.",
                f"Write {' and '.join(f'`{key}`' for key in meant)}.",
            )
        owners = [entry.plugin.name for entry in registry.all("backend") if key in entry.plugin.params.model_fields]
        if owners:
            raise ConfigError(
                "section-of-other-backend",
                f"`{key}` (from {merged.origin((key,))}) belongs to backend {' and '.join(owners)}, and this run has "
                f"backend {backend.name}.",
                f"Add --backend {owners[0]}, or remove `{key}`.",
            )


def _put_both(
    merged: MergedValues, shared: Sequence[SharedKey], core_key: str, value: Any, origin: str, tier: Tier
) -> None:
    """Set a key of the core, and the native keys that share it."""
    merged.put(split_key(core_key), value, origin, tier)
    for row in shared:
        if row.rllm == core_key:
            merged.put(split_key(row.native), _native_spelling(value, row), origin, tier)


def _derive(merged: MergedValues, tree: dict[str, Any], row: DerivedKey) -> Any:
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


def _agree(merged: MergedValues, tree: dict[str, Any], core_key: str, rows: Sequence[SharedKey]) -> list[str]:
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


def _is_idle(merged: MergedValues, tree: dict[str, Any], native: _Side, row: SharedKey) -> bool:
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


def _side(merged: MergedValues, tree: dict[str, Any], key: str, spelled: Sequence[tuple[Any, Any]]) -> _Side:
    path = split_key(key)
    value = value_at(tree, path)
    for core_value, native_value in spelled:
        if identical(value, native_value):
            value = core_value
            break
    origin, tier = merged.mark(path)
    given_null = value is None and tier >= Tier.USER
    if value is None or value == MISSING:
        value = ABSENT
    return _Side(key, value, tier, origin, given_null)


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


def _put(merged: MergedValues, tree: dict[str, Any], key: str, value: Any, source: _Side, origin: str) -> None:
    path = split_key(key)
    written = value_at(merged.tree, split_key(source.key))
    merged.put(path, written if is_from_environment(written) else escape(value), origin, source.tier)
    put_at(tree, path, value)
