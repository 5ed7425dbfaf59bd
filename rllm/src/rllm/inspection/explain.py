"""Explain one config key: meaning, type, default, its value in a run, and the plugins that use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rllm.config import (
    ABSENT,
    DEFAULT,
    KeyPath,
    as_config_error,
    idle_reason,
    known_keys,
    list_fields,
    packaged_values,
    show_value,
    split_key,
    unknown_key,
    value_at,
)
from rllm.inspection.describe import Option, describe_field, fill_descriptions, section_of
from rllm.planning import RunPlan, acting_plugins, core_key
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.section import ExternalSection, Names, Rejected


@dataclass(frozen=True)
class Explanation:
    """The explanation of a key."""

    about: Option
    """Name, type, default and meaning."""
    facts: dict[str, str]
    """Further facts by label: value, the plugins that use it, names to choose from, …"""


def explain_key(key: str, plan: RunPlan, registry: Registry) -> Explanation | list[Option]:
    """Explain a key. For a section, list its keys.

    Raises:
        ConfigError: the key does not exist. The hint has the most similar key.
    """
    path = tuple(part for part in key.strip().split(".") if part)
    schemas: list[type[BaseModel]] = [RunConfig, plan.backend.plugin.params]
    for schema in schemas:
        fill_descriptions(schema)
    found = [list_fields(schema)[path] for schema in schemas if path in list_fields(schema)]
    found = found or _option_at(path, plan) or list(_packaged_at(path, plan))
    if not found:
        keys = [known for schema in schemas for known in known_keys(schema)]
        raise as_config_error([unknown_key(path or (key,), "the key to explain", keys)])
    if sections := [section for field in found if (section := section_of(field)) is not None]:
        return [option for section in sections for option in _options_in(section, path)]
    return _explanation(path, found[0], plan, registry)


def _explanation(path: KeyPath, field: FieldInfo, plan: RunPlan, registry: Registry) -> Explanation:
    dotted = ".".join(path)
    known = core_key(RunConfig(), path)
    acting = acting_plugins(registry, known) if known else []
    used = {(entry.kind, entry.qualified_name) for entry in plan.registered()}
    in_this_run = [entry for entry in acting if (entry.kind, entry.qualified_name) in used]
    by_plugins = known is not None and not known.is_read_by_core
    backends = registry.all("backend")
    if known is None:
        of_backend: type[BaseModel] = plan.backend.plugin.params
        own = path in list_fields(of_backend) or any(_packaged_at(path, plan))
        owner = _owner(path, plan)
        of_option = f"{owner.registered.kind} {owner.plugin.name}" if owner else ""
        acts = f"backend {plan.backend.name}" if own else of_option
        honoring = [entry for entry in backends if _has_key(entry, path, plan)] if own else backends
    elif by_plugins:
        acts = _names(acting) or "no installed plugin"
        kinds = {entry.kind for entry in acting}
        honoring = [entry for entry in acting if entry.kind == "backend"] if kinds == {"backend"} else backends
        honoring = honoring if acting else []
    else:
        acts, honoring = "the core", backends
    refused = [mark.reason for mark in field.metadata if isinstance(mark, Rejected)]
    if instead := idle_reason(plan.backend.plugin, dotted, plan.config.rllm.profile):
        acts, honoring, refused = "no plugin", [], [*refused, instead]
    if known and refused and known.mark(Rejected).value is None:
        acts, honoring = "no plugin", []
    about = describe_field(dotted, field)
    facts = {
        "type": about.type,
        "default": about.default,
        "value": f"{show_value(_value(path, plan))} (from {plan.composed.origin(dotted) or DEFAULT})",
        "choices": ", ".join(
            entry.name for mark in field.metadata if isinstance(mark, Names) for entry in registry.all(mark.kind)
        ),
        "options": _list_options(path, plan),
        "read by": acts,
        "in this run": (_names(in_this_run) or "nothing") if by_plugins and acting else "",
        "backends": ", ".join(entry.name for entry in honoring) or "none",
        "also known as": ", ".join(_shared_as(dotted, plan, backends)),
        "refused": " ".join(refused),
    }
    return Explanation(about, {label: fact for label, fact in facts.items() if fact})


def _shared_as(dotted: str, plan: RunPlan, backends: list[Registered[Any]]) -> Iterator[str]:
    for entry in backends:
        yield from (f"{shared.native} ({entry.name})" for shared in entry.plugin.shared_keys if shared.rllm == dotted)
    yield from (shared.rllm for shared in plan.backend.plugin.shared_keys if shared.native == dotted)


def _has_key(backend: Registered[Any], path: KeyPath, plan: RunPlan) -> bool:
    """True if a backend has the key: it is the run's backend, or its schema contains the key."""
    return backend == plan.backend or path in list_fields(backend.plugin.params)


def _option_at(path: KeyPath, plan: RunPlan) -> list[FieldInfo]:
    """Return the field of a plugin's option."""
    owner = _owner(path, plan)
    if owner is None or path[-1] not in owner.plugin.params.model_fields:
        return []
    fill_descriptions(owner.plugin.params)
    return [owner.plugin.params.model_fields[path[-1]]]


def _packaged_at(path: KeyPath, plan: RunPlan) -> Iterator[FieldInfo]:
    """Yield the packaged field of a key that a different system reads and documents."""
    section = plan.backend.plugin.params.model_fields.get(path[0]) if len(path) > 1 else None
    if section is None or not any(isinstance(mark, ExternalSection) for mark in section.metadata):
        return
    value = value_at(plan.composed.tree, path)
    if value is ABSENT or isinstance(value, Mapping):
        return
    default = value_at(packaged_values(plan.backend.plugin, plan.config.rllm.profile), path)
    about = f"A key of the section `{path[0]}`: {section.description or 'not described.'}"
    yield FieldInfo(annotation=type(value), default=None if default is ABSENT else default, description=about)


def _owner(path: KeyPath, plan: RunPlan) -> PluginChoice[Any] | None:
    """Return the plugin of the run that has the key as an option."""
    return _choices(plan).get(path[:-1])


def _choices(plan: RunPlan) -> dict[KeyPath, PluginChoice[Any] | None]:
    """Return the plugins of the run by the keys that contain their options. Plugins by role or in lists are missing."""
    choices = {
        "rllm.env.env_args": plan.environment,
        "rllm.workflow.workflow_args": plan.workflow,
        "rllm.agent.agent_args": plan.agent,
        "rllm.algorithm.adv_estimator": plan.estimators.default,
        "rllm.algorithm.loss_fn": plan.losses.default,
        "rllm.transform.grouping": plan.grouping,
        "rllm.rejection_sample.mode": plan.rejection,
        "rllm.rollout.engine": plan.engine,
        "rllm.renderer": plan.renderer,
        "rllm.sampler": plan.sampler,
        "rllm.sandbox": plan.sandbox,
        "rllm.teacher": plan.teacher,
        "data.train_dataset": plan.train_dataset,
        "data.val_dataset": plan.val_dataset,
    }
    return {split_key(key): chosen for key, chosen in choices.items()}


def _options_in(section: type[BaseModel], path: KeyPath) -> Iterator[Option]:
    for name, field in section.model_fields.items():
        dotted = ".".join((*path, name))
        if section_of(field) is None:
            yield describe_field(dotted, field)
        else:
            yield Option(dotted, "section", "", field.description or "")


def _value(path: KeyPath, plan: RunPlan) -> Any:
    """Return the value in the run. For an option that is not set, return the plugin's default."""
    value = value_at(plan.composed.printable_tree, path)
    owner = _owner(path, plan)
    return getattr(owner.params, path[-1]) if value is ABSENT and owner else value


def _list_options(path: KeyPath, plan: RunPlan) -> str:
    """Return the options of the plugin that the key chooses in this run."""
    chosen = _choices(plan).get(path)
    if chosen is None or not chosen.plugin.params.model_fields:
        return ""
    return f"{', '.join(chosen.plugin.params.model_fields)} (of {chosen.registered.kind} {chosen.plugin.name})"


def _names(entries: list[Registered[Any]]) -> str:
    return ", ".join(f"{entry.kind} {entry.name}" for entry in entries)
