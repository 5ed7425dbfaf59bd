"""Report settings without an effect: if no part of the run reads a user's value, the run fails or warns.

It is a warning if the key has that value anyway, or if ``rllm.unused_keys`` is ``warn``. Marks in the schema
(``rllm_core.schema.section``) declare which plugins read a key.

Values from an environment or an earlier run can become unused by another choice. They are reset to their defaults. An
environment's values are reset silently, because they are suggestions for plugins that the user did not choose. An
earlier run's values had an effect in that run, so a warning reports the reset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rllm.config.compose import Composed
from rllm.config.keys import DEFAULT, covers, idle_reason, same_value
from rllm.config.layers import Tier
from rllm.config.packaged import packaged_values
from rllm.config.paths import ABSENT, KeyPath, put_at, split_key, value_at
from rllm.config.problems import show_value
from rllm.planning.problem import Problem, Severity, unused, warning
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.plugins.discovery import IN_PROCESS
from rllm_core.plugins.registry import Registry
from rllm_core.plugins.specs import KINDS
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.section import Names, NoEffect, ReadBy, Rejected

ModelT = TypeVar("ModelT", bound=BaseModel)
REFUSED = ", which is not supported."
NOBODY = ", and no part of this run uses it."
CHOSEN_BY = {
    "estimator": "rllm.algorithm.adv_estimator",
    "loss": "rllm.algorithm.loss_fn",
    "grouping": "rllm.transform.grouping",
    "rejection": "rllm.rejection_sample.mode",
    "agent": "rllm.agent.name",
    "engine": "rllm.rollout.engine",
}
"""Plugins that others call. Chosen, but with no plugin that reads the key that chooses them, they never run."""


@dataclass(frozen=True)
class Key:
    """One key of the core's schema with its value in a configuration."""

    path: KeyPath
    field: FieldInfo
    value: Any
    section: BaseModel
    inherited: tuple[NoEffect, ...] = ()
    """Marks of its section."""

    @property
    def dotted(self) -> str:
        return ".".join(self.path)

    @property
    def default(self) -> Any:
        return self.field.get_default(call_default_factory=True)

    @property
    def options_of(self) -> tuple[str, ...]:
        """Kinds of plugins that receive the value as an option."""
        read_by = self.mark(ReadBy)
        return read_by.options_of if read_by else ()

    @property
    def is_read_by_core(self) -> bool:
        """True if the key has an effect without any plugin."""
        read_by = self.mark(ReadBy)
        return read_by is None or bool(read_by.core)

    @property
    def no_effect(self) -> NoEffect | None:
        """The first mark whose test passes, on the key itself or on its section."""
        own = (mark for mark in self.field.metadata if isinstance(mark, NoEffect))
        return next((mark for mark in (*own, *self.inherited) if mark.test(self.section)), None)

    def mark(self, kind: type[Any]) -> Any:
        return next((mark for mark in self.field.metadata if isinstance(mark, kind)), None)


def core_keys(config: BaseModel, at: KeyPath = (), inherited: tuple[NoEffect, ...] = ()) -> Iterator[Key]:
    """Yield every key of a configuration with a value, without the sections. `inherited`: marks of `config`."""
    for name, field in type(config).model_fields.items():
        value = config.__dict__[name]
        if isinstance(value, BaseModel):
            marks = tuple(mark for mark in field.metadata if isinstance(mark, NoEffect))
            yield from core_keys(value, (*at, name), marks)
        else:
            yield Key((*at, name), field, value, config, inherited)


def core_key(config: RunConfig, path: KeyPath) -> Key | None:
    """Return the core's key with this path. None if it does not exist."""
    return next((key for key in core_keys(config) if key.path == path), None)


def settle_effects(
    composed: Composed, chosen: Sequence[Registered[Any]], taking: Sequence[PluginChoice[Any]], registry: Registry
) -> tuple[Composed, list[Problem]]:
    """Find user settings that no part of the run reads. Reset them, and unused values from other layers.

    An unused value of an environment or its recipe is reset without a warning.

    Args:
        chosen: every plugin of the run.
        taking: the plugins in `chosen` that take options from shared keys.
    """
    idle: list[Key] = []
    problems = list(_idle_keys_of_backends(composed, chosen))
    chosen = [entry for entry in chosen if _is_called(entry, chosen)]
    taking = [entry for entry in taking if entry.registered in chosen]
    for key in core_keys(composed.config):
        if key.value == key.default:
            continue
        given, by_user = composed.describe(key.dotted), composed.is_by_user(key.dotted)
        if (rejected := key.mark(Rejected)) and key.value == rejected.accepted:
            problems += [warning("redundant-key", key.dotted, f"{given}. {rejected.reason}")] if by_user else []
            continue
        acts = any(_acts_by_itself(entry, key) for entry in chosen) or any(_takes_over(c, key) for c in taking)
        why = _why_idle(key, chosen, registry, acts)
        if why and why[0] == NOBODY and (own := [c for c in taking if _has_option(c.registered, key)]):
            names = ", ".join(f"{entry.registered.kind} {entry.plugin.name}" for entry in own)
            why = (
                NOBODY,
                f"{names} has its own value for {key.path[-1]} in its options. Set one of the two.",
            )
        if why and by_user:
            if why[0] != REFUSED and _happens_anyway(key, taking):
                problems.append(
                    warning(
                        "redundant-key", key.dotted, f"{given}, which is the effective value anyway. It has no effect."
                    )
                )
            else:
                severity: Severity = "refused" if why[0] == REFUSED else "unused"
                problems.append(Problem("unused-key", key.dotted, f"{given}{why[0]}", why[1], severity=severity))
        if why:
            idle.append(key)
            if why[0] == NOBODY and any(composed.tiers[name] is Tier.SAVED for name in composed.keys_below(key.dotted)):
                problems.append(warning("unused-key", key.dotted, f"{given}{NOBODY} It is back to its default."))
    return _with_defaults(composed, idle), problems


def _idle_keys_of_backends(composed: Composed, chosen: Sequence[Registered[Any]]) -> Iterator[Problem]:
    """Yield user values of keys that the backend declares as unused. A value equal to the default gives a warning."""
    profile = composed.config.rllm.profile
    for backend in (entry.plugin for entry in chosen if entry.kind == "backend"):
        for key in sorted(composed.by_user):
            if instead := idle_reason(backend, key, profile):
                given = composed.describe(key)
                of_profile = idle_reason(backend, key) is None
                without_user = packaged_values(backend, profile) if of_profile else composed.unused_defaults
                if same_value(composed.value(key), value_at(without_user, split_key(key))):
                    text = (
                        f"{given}, which is the default: it has no effect, because backend {backend.name} does not "
                        f"use this key. {instead}"
                    )
                    yield warning("unused-key", key, text)
                else:
                    yield unused("unused-key", key, f"{given}, and backend {backend.name} does not use it.", instead)


def config_keys(plugin: Any, key: str) -> bool:
    """True if a plugin spec declares, by `config_keys` or as a shared key, that it reads a key of the core."""
    return _lists(plugin, key) or any(key == shared.rllm for shared in getattr(plugin, "shared_keys", ()))


def _lists(plugin: Any, key: str) -> bool:
    return any(covers(name, key) for name in plugin.config_keys)


def acting_plugins(registry: Registry, key: Key) -> list[Registered[Any]]:
    """Return the installed plugins that can use a key."""
    return [entry for kind in KINDS for entry in registry.all(kind) if _could_act(entry, key)]


def _is_called(entry: Registered[Any], chosen: Sequence[Registered[Any]]) -> bool:
    key = CHOSEN_BY.get(entry.kind)
    return key is None or any(config_keys(other.plugin, key) for other in chosen)


def _could_act(entry: Registered[Any], key: Key) -> bool:
    return _acts_by_itself(entry, key) or _has_option(entry, key)


def _acts_by_itself(entry: Registered[Any], key: Key) -> bool:
    """True if a plugin reads a key that is not one of its options.

    A backend may have a native name for one of the core's own keys, a plugin choice, or a plugin's option. That native
    name is not enough here.
    """
    read_by = key.mark(ReadBy)
    own = read_by is None or read_by.options_of or key.mark(Names)
    acts = _lists if own else config_keys
    return acts(entry.plugin, key.dotted) and (read_by is None or read_by.kind in (None, entry.kind))


def _has_option(entry: Registered[Any], key: Key) -> bool:
    return entry.kind in key.options_of and key.path[-1] in entry.plugin.params.model_fields


def _takes_over(chosen: PluginChoice[Any], key: Key) -> bool:
    """True if a plugin has the option and the user's mapping for the plugin does not set it."""
    return _has_option(chosen.registered, key) and key.path[-1] not in chosen.own


def _why_idle(key: Key, chosen: Sequence[Registered[Any]], registry: Registry, acts: bool) -> tuple[str, str] | None:
    """Return the problem and the remedy, or None if the key is used. `acts` is True if a chosen plugin reads it."""
    rejected = key.mark(Rejected)
    if rejected and rejected.value in (None, key.value):
        return REFUSED, rejected.reason
    if mark := key.no_effect:
        values = {name: show_value(value).removesuffix(".0") for name, value in key.section}
        values["section"] = ".".join(key.path[:-1])
        return f" and has no effect{mark.because.format(**values)}.", mark.remedy.format(**values)
    if acts or key.is_read_by_core:
        return None
    return NOBODY, _who_would(key, chosen, registry)


def _happens_anyway(key: Key, taking: Sequence[PluginChoice[Any]]) -> bool:
    """True if an unused key has the value that the run uses anyway."""
    values = list(_in_force(key, taking))
    return bool(values) and all(same_value(key.value, value) for value in values)


def _in_force(key: Key, taking: Sequence[PluginChoice[Any]]) -> Iterator[Any]:
    """Yield the value used instead of a key's value, or a value for each plugin with a fixed value. `ABSENT` if a
    plugin does not declare its value."""
    if mark := key.no_effect:
        if mark.instead:
            yield mark.instead(key.section)
        return
    for kind in key.options_of:
        values = [_acted_by(entry, key) for entry in taking if entry.registered.kind == kind]
        if any(value is not ABSENT for value in values):
            yield from values


def _acted_by(chosen: PluginChoice[Any], key: Key) -> Any:
    """Return the value that a plugin uses regardless of the core's key. `ABSENT` if the spec does not declare it."""
    name = key.path[-1]
    if _has_option(chosen.registered, key):
        return getattr(chosen.params, name)
    return chosen.plugin.fixed_options.get(name, ABSENT)


def _who_would(key: Key, chosen: Sequence[Registered[Any]], registry: Registry) -> str:
    acting = acting_plugins(registry, key)
    if not acting and key.dotted == "rllm.record":
        return "rllm-record reads it: pip install rllm-record. Without it nothing is recorded."
    if not acting:
        return "No installed plugin reads it. Remove it."
    kinds = {entry.kind for entry in acting}
    used = ", ".join(_describe_plugin(entry, key) for entry in chosen if entry.kind in kinds)
    own = [entry for entry in chosen if entry.kind in kinds and entry.distribution == IN_PROCESS]
    declare = (
        f" If {own[0].kind} {own[0].name} reads the key, register it with config_keys={{{key.dotted!r}}}."
        if own
        else ""
    )
    chosen_by = {**CHOSEN_BY, "backend": "rllm.backend", "workflow": "rllm.workflow.name"}
    # A workflow that needs its own environment is no remedy.
    fitting = [entry for entry in acting if not (entry.kind == "workflow" and entry.plugin.needs_environment)]
    other = next((f"{chosen_by[entry.kind]}={entry.name}" for entry in fitting if entry.kind in chosen_by), None)
    remedy = f" Remove {key.dotted}" + (f", or set {other}." if other else ".")
    return f"{_list('Plugins that read it:', acting)} This run uses {used or 'none of these kinds'}.{remedy}{declare}"


def _describe_plugin(entry: Registered[Any], key: Key) -> str:
    """Return a plugin's kind and name as text, with its options if the key would be an option."""
    options = ", ".join(entry.plugin.params.model_fields) if key.options_of else ""
    return f"{entry.kind} {entry.name}" + (f" (its options: {options})" if options else "")


def _list(label: str, entries: Iterable[Registered[Any]]) -> str:
    return f"{label} {', '.join(f'{entry.kind} {entry.name}' for entry in entries)}."


def _with_defaults(composed: Composed, idle: Sequence[Key]) -> Composed:
    if not idle:
        return composed
    config, tree = composed.config, deepcopy(composed.tree)
    origins, tiers = dict(composed.origins), dict(composed.tiers)
    for key in idle:
        default = type(key.section)().model_dump(mode="json")[key.path[-1]]
        put_at(tree, key.path, default)
        for name in composed.keys_below(key.dotted):
            del origins[name], tiers[name]
        origins[key.dotted], tiers[key.dotted] = DEFAULT, Tier.PACKAGED
        config = replace_value(config, key.path, key.default)
    unused = tuple(key.path for key in idle)
    return replace(composed, config=config, tree=tree, origins=origins, tiers=tiers, unused=unused)


def replace_value(section: ModelT, path: KeyPath, value: Any) -> ModelT:
    """Return a copy of a frozen section with one key changed."""
    head, *rest = path
    inner = replace_value(getattr(section, head), tuple(rest), value) if rest else value
    return section.model_copy(update={head: inner})
