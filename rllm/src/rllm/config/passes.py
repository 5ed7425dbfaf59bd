"""Passes over merged values, from sharing keys to checks, see `run_passes`.

Shared keys are settings that a backend stores under its own paths, with the same value as the core's key. Priority,
highest first: the core's value on the command line, then the native value there. The same order follows for
configuration files, for an environment's values and for packaged YAML. A null of the core keeps the native value.
Derived keys are backend keys whose values are computed from other keys, unless the user sets them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from rllm.config.keys import DEFAULT, value_keys
from rllm.config.layers import Tier
from rllm.config.paths import identical, leaves, split_key
from rllm.config.problems import typed_value
from rllm.config.values import Entry, MergedValues
from rllm_core.contracts.backend import DerivedKey, SharedKey
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.run_sections import TrainerSection

EPOCHS, BATCHES = "rllm.trainer.total_epochs", "rllm.trainer.total_batches"


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


def share_keys(merged: MergedValues, shared: Sequence[SharedKey]) -> MergedValues:
    """Make all shared keys agree. The result has warnings for the user."""
    entries = merged.read({key for row in shared for key in (row.native, row.rllm, row.while_null or row.rllm)})
    changed: list[Entry] = []
    warnings: list[str] = []
    by_core_key: dict[str, list[SharedKey]] = {}
    for row in shared:
        by_core_key.setdefault(row.rllm, []).append(row)
    # Keys that others fall back on come first.
    for core_key, rows in sorted(by_core_key.items(), key=lambda item: any(row.while_null for row in item[1])):
        core, natives = entries[core_key], [(row, _core_spelling(entries[row.native], row)) for row in rows]
        winner = _find_winner(core, natives, entries)
        agreed = list(_agree(core, winner, natives, entries))
        changed += agreed
        entries |= {entry.key: entry for entry in agreed}
        warnings += [line for row, native in natives for line in _warnings(core, native, winner, row)]
    return merged.replace_entries(changed, warnings)


def read_model(merged: MergedValues, backend: Any) -> Any:
    """Return the model of a run. If it is computed from other keys, shared keys get their values first."""
    rows = [row for row in backend.derived_keys if row.native == backend.model_key]
    shared = share_keys(merged, backend.shared_keys if rows else ())
    return derive_keys(shared, rows, backend.params).early_value(backend.model_key)


def choose_length(merged: MergedValues, shared: Sequence[SharedKey]) -> MergedValues:
    """Use either epochs or steps: of the two keys for the length of a run, only the one from the higher tier applies.

    The core's key and the backend's native key for the same setting agree already, and this keeps them equal.
    """
    if merged.early_value(BATCHES) == -1:
        return merged
    epochs, batches = merged.read([EPOCHS, BATCHES]).values()
    if epochs.tier > batches.tier:
        core = Entry(BATCHES, -1, None, epochs.origin, epochs.tier)
    elif batches.tier > epochs.tier:
        core = Entry(EPOCHS, TrainerSection.model_fields["total_epochs"].default, None, DEFAULT, Tier.PACKAGED)
    else:
        return merged
    rows = [row for row in shared if row.rllm == core.key]
    natives = [core._replace(key=row.native, value=_native_spelling(core.value, row)) for row in rows]
    return merged.replace_entries([core, *natives])


def derive_keys(merged: MergedValues, derived: Sequence[DerivedKey], schema: type[BaseModel]) -> MergedValues:
    """Set the derived keys that have no value from the user.

    Args:
        schema: the backend's `params`. It provides values for the backend's keys that no layer sets.

    Raises:
        ConfigError: a value cannot be computed from the values of the other keys.
    """
    entries = merged.read({key for row in derived for key in (row.native, *row.of)}, schema)
    return merged.replace_entries(
        _derive(row, [entries[key] for key in row.of]) for row in derived if entries[row.native].tier < Tier.SAVED
    )


def check_choices(merged: MergedValues, decided: Mapping[str, str]) -> None:
    """Check that the choices made from the user's layers are unchanged. If not, the wrong layers were merged."""
    for key, value in decided.items():
        if (now := merged.early_value(key)) != value:
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


def _find_winner(core: Entry, natives: Sequence[tuple[SharedKey, Entry]], entries: Mapping[str, Entry]) -> Entry:
    """Return the entry whose value the core's key and the native keys that share it get."""
    own = [native for row, native in natives if not _is_idle(native, row, entries)]
    # `max` returns the first of equal entries, so the first native key of a tier wins.
    native = max(own, key=lambda entry: entry.tier, default=core)
    return native if not core.is_set or native.tier > core.tier else core


def _agree(
    core: Entry, winner: Entry, natives: Sequence[tuple[SharedKey, Entry]], entries: Mapping[str, Entry]
) -> Iterator[Entry]:
    """Yield the entries that change when the core's key and the native keys get the winner's value."""
    if winner is not core:
        yield winner._replace(key=core.key, origin=f"{winner.origin}, by {winner.key}")
    for row, native in natives:
        source = entries[row.while_null] if row.while_null and not winner.is_set else winner
        if not source.is_set:
            continue
        value = _native_spelling(source.value, row)
        if _bare(native.value) != _bare(source.value) or not identical(entries[native.key].value, value):
            origin = native.origin if source is native else f"{source.origin}, by {source.key}"
            yield source._replace(key=native.key, value=value, origin=origin)


def _is_idle(native: Entry, row: SharedKey, entries: Mapping[str, Entry]) -> bool:
    """True if a native key has no value from a user.

    If null for the core's key means "same as another key", a packaged default is ignored. A value that an earlier
    sharing put there for such a null is ignored too.
    """
    if not native.is_set or row.while_null is None:
        return not native.is_set
    return native.tier is Tier.PACKAGED or identical(native.value, entries[row.while_null].value)


def _warnings(core: Entry, native: Entry, winner: Entry, row: SharedKey) -> Iterator[str]:
    given_null = native.value is None and native.tier >= Tier.USER
    if given_null and winner.is_set and native.tier >= winner.tier:
        yield f"`{native.key}` is null (from {native.origin}), but {winner}: the latter counts. Set only `{core.key}`."
    if not (native.by_user and winner.is_set):
        return
    if native is winner and core.by_user and _bare(core.value) != _bare(native.value):
        yield f"{core}, but {native}: the latter counts. Set only `{core.key}`."
    elif _bare(native.value) != _bare(winner.value):
        yield f"{native}, but {winner}: the latter counts. Set only `{core.key}`."
    elif row.deprecated:
        yield f"{native}, which is deprecated: set `{core.key}` instead."


def _core_spelling(native: Entry, row: SharedKey) -> Entry:
    spelled = (core_value for core_value, native_value in row.spelled if identical(native.value, native_value))
    return native._replace(value=next(spelled, native.value))


def _native_spelling(value: Any, row: SharedKey) -> Any:
    value = _bare(value)
    return next((native_value for core_value, native_value in row.spelled if identical(value, core_value)), value)


def _bare(value: Any) -> Any:
    """Return a plugin choice in the form a backend uses: only the name. The options stay with the core's key."""
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        value = value["name"]
        return value.rpartition("/")[2]
    return value


def _derive(row: DerivedKey, sources: Sequence[Entry]) -> Entry:
    values = [source.value if source.is_set else None for source in sources]
    try:
        value = row.derive(*values)
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        # Values are validated later; these may be anything.
        given = ", ".join(str(source) if source.is_set else f"`{source.key}` is not set" for source in sources)
        raise ConfigError("wrong-value", f"`{row.native}` cannot be derived, as {given}: {error}.") from error
    return Entry(row.native, value, None, f"{' and '.join(row.of)}, by derivation", Tier.PACKAGED)
