"""No setting without an effect: a user's value that nobody would act on stops the run, or is a warning.

It is a warning where the key has that value anyway, and where ``rllm.unused_keys`` is ``warn``. Who acts on a key is
marked in the schema (``rllm_core.schema.section``). Values that came from an environment or from
an earlier run, and that another choice has made idle, go back to their defaults instead. An environment's do so without
a word: they are suggestions for plugins that the user did not choose. An earlier run's did act there, so that is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rllm_core.config.compose import Composed
from rllm_core.config.layers import Tier
from rllm_core.config.packaged import DEFAULT
from rllm_core.config.paths import ABSENT, KeyPath, path_of, put_at, value_at
from rllm_core.config.problems import show_value
from rllm_core.config.unused import UnusedKeys, covers, idle_reason, same_value
from rllm_core.contracts.chosen import Chosen, Registered
from rllm_core.errors import ConfigError
from rllm_core.plugins.discovery import IN_PROCESS
from rllm_core.plugins.kinds import KINDS
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.section import ByPlugins, IdleWithout, Names, Redundant, Refused, TakenOver, WhileOff

ModelT = TypeVar("ModelT", bound=BaseModel)
REFUSED = ", which is refused."
NOBODY = ", and nothing this run uses acts on it."
SWITCHES = ("enable", "log_episodes")
"""A section with such a key is idle while that is false."""
CHOSEN_BY = {
    "estimator": "rllm.algorithm.adv_estimator",
    "loss": "rllm.algorithm.loss_fn",
    "grouping": "rllm.transform.grouping",
    "rejection": "rllm.rejection_sample.mode",
    "agent": "rllm.agent.name",
    "engine": "rllm.rollout.engine",
}
"""Plugins that others call. Chosen, but with no plugin that honours the key that chooses them, they never run."""


@dataclass(frozen=True)
class Key:
    """One key of the core's schema with its value in a configuration."""

    path: KeyPath
    field: FieldInfo
    value: Any
    section: BaseModel

    @property
    def dotted(self) -> str:
        return ".".join(self.path)

    @property
    def default(self) -> Any:
        return self.field.get_default(call_default_factory=True)

    def mark(self, kind: type[Any]) -> Any:
        return next((mark for mark in self.field.metadata if isinstance(mark, kind)), None)


def core_keys(config: BaseModel, at: KeyPath = ()) -> Iterator[Key]:
    """Every key of a configuration that holds a value and not a section."""
    for name, field in type(config).model_fields.items():
        value = config.__dict__[name]
        if isinstance(value, BaseModel):
            yield from core_keys(value, (*at, name))
        else:
            yield Key((*at, name), field, value, config)


def core_key(config: RunConfig, path: KeyPath) -> Key | None:
    """One key of the core, if it is one."""
    return next((key for key in core_keys(config) if key.path == path), None)


def settle_effects(
    composed: Composed,
    chosen: Sequence[Registered[Any]],
    taking: Sequence[Chosen[Any]],
    registry: Registry,
    unused: UnusedKeys,
) -> tuple[Composed, list[str]]:
    """Find what a user set and nobody acts on; reset it, and such values of lower origin. Also returns warnings.

    A value of an environment or its recipe is reset without a warning.

    Args:
        chosen: every plugin of the run.
        taking: those of them that take options over from shared keys.
        unused: takes every key a user set that has no effect.

    Raises:
        ConfigError: for the first of these, where they are errors; for a value that is refused.
    """
    idle: list[Key] = []
    warnings = list(_idle_keys_of_backends(composed, chosen, unused))
    chosen = [entry for entry in chosen if _is_called(entry, chosen)]
    taking = [entry for entry in taking if entry.registered in chosen]
    for key in core_keys(composed.config):
        if key.value == key.default:
            continue
        given, by_user = composed.given(key.dotted), composed.is_by_user(key.dotted)
        if (redundant := key.mark(Redundant)) and key.value == redundant.value:
            if by_user:
                warnings.append(f"{given}: {redundant.reason}.")
            continue
        acts = any(_acts_by_itself(entry, key) for entry in chosen) or any(_takes_over(c, key) for c in taking)
        why = _why_idle(key, composed.config, chosen, registry, acts)
        if why and why[0] == NOBODY and (own := [c for c in taking if _has_option(c.registered, key)]):
            names = ", ".join(f"{entry.registered.kind} {entry.plugin.name}" for entry in own)
            why = (
                NOBODY,
                f"{names} has a value of its own for {key.path[-1]}, where it is chosen. Set one of the two.",
            )
        if why and by_user:
            if why[0] == REFUSED:
                raise ConfigError(f"{given}{why[0]}", why[1])
            if _happens_anyway(key, composed.config, taking):
                warnings.append(f"{given}, which is what happens anyway: the key changes nothing.")
            else:
                unused.found(f"{given}{why[0]}", why[1])
        if why:
            idle.append(key)
            if why[0] == NOBODY and any(composed.tiers[name] is Tier.SAVED for name in composed.beneath(key.dotted)):
                warnings.append(f"{given}{NOBODY} It is back to its default.")
        elif by_user and (line := _changes_nothing(key, composed.config)):
            warnings.append(f"{given} and changes nothing: {line}.")
    return _with_defaults(composed, idle), warnings


def _idle_keys_of_backends(composed: Composed, chosen: Sequence[Registered[Any]], unused: UnusedKeys) -> Iterator[str]:
    """Find a user's values under keys that the backend knows to be without effect; warns of those that are defaults."""
    for backend in (entry.plugin for entry in chosen if entry.kind == "backend"):
        for key in sorted(composed.by_user):
            if instead := idle_reason(backend, key):
                given = composed.given(key)
                if same_value(composed.value(key), value_at(composed.in_force, path_of(key))):
                    yield (
                        f"{given}, as it is by default: the key changes nothing, since backend {backend.name} does not "
                        f"act on it. {instead}"
                    )
                else:
                    unused.found(f"{given}, and backend {backend.name} does not act on it.", instead)


def honours(plugin: Any, key: str) -> bool:
    """Whether a record says, by `honours` or as a shared key, that it acts on a key of the core."""
    return _lists(plugin, key) or any(key == shared.rllm for shared in getattr(plugin, "shared_keys", ()))


def _lists(plugin: Any, key: str) -> bool:
    return any(covers(name, key) for name in plugin.honours)


def shared_options(config: RunConfig, kind: str) -> dict[str, Any]:
    """Values of the core that plugins of a kind take over as options, by name; null leaves the plugin's own default."""
    keys = ((key, key.mark(TakenOver)) for key in core_keys(config))
    return {key.path[-1]: key.value for key, mark in keys if mark and kind in mark.kinds and key.value is not None}


def acting_plugins(registry: Registry, key: Key) -> list[Registered[Any]]:
    """Installed plugins through which a key can act."""
    return [entry for kind in KINDS for entry in registry.all(kind) if _could_act(entry, key)]


def _is_called(entry: Registered[Any], chosen: Sequence[Registered[Any]]) -> bool:
    key = CHOSEN_BY.get(entry.kind)
    return key is None or any(honours(other.plugin, key) for other in chosen)


def _could_act(entry: Registered[Any], key: Key) -> bool:
    return _acts_by_itself(entry, key) or _has_option(entry, key)


def _acts_by_itself(entry: Registered[Any], key: Key) -> bool:
    """Whether it acts on a key that is no option of it.

    A backend that has the core's own key, the choice of a plugin, or the option of one, under another name does not act
    on it.
    """
    own = key.mark(ByPlugins) is None or key.mark(TakenOver) or key.mark(Names)
    acts = _lists if own else honours
    return acts(entry.plugin, key.dotted)


def _has_option(entry: Registered[Any], key: Key) -> bool:
    mark = key.mark(TakenOver)
    return mark is not None and entry.kind in mark.kinds and key.path[-1] in entry.plugin.params.model_fields


def _takes_over(chosen: Chosen[Any], key: Key) -> bool:
    """Whether a plugin has the option and its own mapping does not set it."""
    return _has_option(chosen.registered, key) and key.path[-1] not in chosen.own


def _why_idle(
    key: Key, config: RunConfig, chosen: Sequence[Registered[Any]], registry: Registry, acts: bool
) -> tuple[str, str] | None:
    """What is wrong and what to do; None when somebody acts on the key. `acts`: a chosen plugin does."""
    refused = key.mark(Refused)
    if key.mark(Redundant) or (refused and refused.value in (None, key.value)):
        reason = refused.reason if refused else key.mark(Redundant).reason[:1].upper() + key.mark(Redundant).reason[1:]
        return REFUSED, reason
    if name := _switched_off(key):
        on, off = ".".join((*key.path[:-1], name)), getattr(key.section, name)
        shown = show_value(off).removesuffix(".0")
        return (
            f" and has no effect while {on} is {shown}.",
            f"Set {on}{'=true' if off is False else ''} as well, or leave it out.",
        )
    if (other := _overruled(key, config)) is not None:
        return other
    if acts or key.mark(ByPlugins) is None:
        return None
    return NOBODY, _who_would(key, chosen, registry)


def _switched_off(key: Key) -> str | None:
    """The switch of a key, where it is off: the one it is marked with, or that of its section."""
    needed = key.mark(IdleWithout)
    switch = needed.key if needed else next((name for name in SWITCHES if name in type(key.section).model_fields), None)
    return switch if switch and key.path[-1] != switch and not getattr(key.section, switch) else None


def _happens_anyway(key: Key, config: RunConfig, taking: Sequence[Chosen[Any]]) -> bool:
    """Whether a key that nothing acts on has the value by which the run goes without it."""
    values = list(_in_force(key, config, taking))
    return bool(values) and all(same_value(key.value, value) for value in values)


def _in_force(key: Key, config: RunConfig, taking: Sequence[Chosen[Any]]) -> Iterator[Any]:
    """What counts in place of a key's value: one, or one for each plugin that acts by some value; `ABSENT` where a
    plugin does not say."""
    if key.dotted == "rllm.algorithm.entropy.final_coeff":
        yield config.rllm.algorithm.entropy.coeff
    elif _switched_off(key):
        if mark := key.mark(WhileOff):
            yield mark.value
    elif mark := key.mark(TakenOver):
        for kind in mark.kinds:
            values = [_acted_by(entry, key) for entry in taking if entry.registered.kind == kind]
            if any(value is not ABSENT for value in values):
                yield from values


def _acted_by(chosen: Chosen[Any], key: Key) -> Any:
    """The value by which a plugin acts, whatever the core's key says; `ABSENT` where the record does not tell."""
    name = key.path[-1]
    if _has_option(chosen.registered, key):
        return getattr(chosen.params, name)
    return chosen.plugin.fixed_options.get(name, ABSENT)


def _overruled(key: Key, config: RunConfig) -> tuple[str, str] | None:
    """Keys that another key's value makes idle."""
    trainer, algorithm, entropy = config.rllm.trainer, config.rllm.algorithm, config.rllm.algorithm.entropy
    match key.dotted:
        case "rllm.trainer.total_epochs" if trainer.total_batches > 0:
            return f" and has no effect: rllm.trainer.total_batches is {trainer.total_batches}.", "Set one of the two."
        case "rllm.algorithm.entropy.decay_steps" if entropy.coeff == entropy.final_coeff:
            return " and has no effect: coeff and final_coeff are equal.", "Set coeff or final_coeff."
        case "rllm.algorithm.rollout_correction.tis_mode" if algorithm.rollout_correction.bypass_mode:
            return (
                " and has no effect: bypass_mode is true, so old log-probs are the rollout's and every ratio is 1.",
                "Leave bypass_mode out, or set it to false.",
            )
    return None


def _changes_nothing(key: Key, config: RunConfig) -> str | None:
    """Why a key that is acted on leaves all as it is; users of rLLM may have set it for what is always done here."""
    if key.dotted == "rllm.stepwise_advantage.enable" and not config.rllm.stepwise_advantage.normalize_by_steps:
        return "every step has its trajectory's advantage anyway, and normalize_by_steps is false"
    return None


def _who_would(key: Key, chosen: Sequence[Registered[Any]], registry: Registry) -> str:
    acting = acting_plugins(registry, key)
    if key.dotted.startswith("rllm.sdk."):
        return "rllm.sdk belongs to a gateway plugin, and none is installed." if not acting else _list("Add", acting)
    if not acting:
        return "No installed plugin does; leave it out."
    kinds = {entry.kind for entry in acting}
    used = ", ".join(_used(entry, key) for entry in chosen if entry.kind in kinds)
    own = [entry for entry in chosen if entry.kind in kinds and entry.distribution == IN_PROCESS]
    declare = (
        f" If {own[0].kind} {own[0].name} reads the key, register it with honours={{{key.dotted!r}}}." if own else ""
    )
    return f"{_list('Acting on it:', acting)} This run uses {used or 'none of these kinds'}.{declare}"


def _used(entry: Registered[Any], key: Key) -> str:
    """A plugin of the run, with the options that it has where the key would have been one."""
    options = ", ".join(entry.plugin.params.model_fields) if key.mark(TakenOver) else ""
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
        for name in composed.beneath(key.dotted):
            del origins[name], tiers[name]
        origins[key.dotted], tiers[key.dotted] = DEFAULT, Tier.PACKAGED
        config = _changed(config, key.path, key.default)
    unused = tuple(key.path for key in idle)
    return replace(composed, config=config, tree=tree, origins=origins, tiers=tiers, unused=unused)


def _changed(section: ModelT, path: KeyPath, value: Any) -> ModelT:
    """A copy of a frozen section with one key changed."""
    head, *rest = path
    inner = _changed(getattr(section, head), tuple(rest), value) if rest else value
    return section.model_copy(update={head: inner})
