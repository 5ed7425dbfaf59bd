"""The reference page of all config keys, made from the schemas: ``python docs/generate/config_reference.py``."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from page_text import cell, table
from pydantic import BaseModel

from rllm_core.config.paths import KeyPath
from rllm_core.planning.unused_keys import Key, acting_plugins, core_keys
from rllm_core.plugins.registry import Registry
from rllm_core.schema.describe import Option, describe_field, options_of
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.section import ByPlugins, Redundant, Refused

DISTRIBUTIONS = (
    "rllm-core",
    "rllm-data",
    "rllm-endpoint",
    "rllm-envs",
    "rllm-estimators",
    "rllm-gateway",
    "rllm-local",
    "rllm-reasoning-gym",
    "rllm-record",
    "rllm-renderers",
    "rllm-tasks",
    "rllm-textarena",
    "rllm-tinker",
    "rllm-tools",
    "rllm-trackers",
    "rllm-verl",
    "rllm-vllm",
)
"""Whose plugins are on the page: those of this repository."""

INTRODUCTION = """\
# Config keys

<!-- Made by `make docs` from the schemas; do not edit. A test fails when it is stale. -->

Every key of the core with its type, its default and its meaning; then those of the backends. Options of plugins are on
the [page of their kind](kinds.md). `rllm config explain KEY` says the same with the value in a run of yours.

Keys are set in YAML files (`--config FILE`), on the command line (`key=value`, as in Hydra) and from Python. From
lowest to highest: the core's defaults, the backend's YAML file, the environment's defaults, its recipe for the model,
`--config` files in order, the command line. Where a key wants a *plugin*, write its name (`rloo`), its name with that
of its distribution (`rllm-core/rloo`), or a mapping with its options (`{name: grpo, norm_adv_by_std_in_grpo: false}`).

A value that nothing in the run would act on stops the run before it starts. *Acts through* says who acts on a key:
nothing there means the core does, always.
"""


def reference_page(registry: Registry) -> str:
    """The page, in Markdown."""
    parts = [INTRODUCTION]
    for section, keys in _by_section(core_keys(RunConfig())).items():
        parts.append(f"## `{'.'.join(section)}`\n\n{_about(section)}\n")
        rows = [(*_cells(describe_field(key.path[-1], key.field)), _acting(registry, key)) for key in keys]
        parts.append(table(("key", "type", "default", "meaning", "acts through"), rows))
    for entry in registry.all("backend"):
        if entry.distribution in DISTRIBUTIONS:
            parts.append(f"## Backend `{entry.name}`\n")
            parts.append(table(("key", "type", "default", "meaning"), map(_cells, options_of(entry.plugin.params))))
    return "\n".join(parts)


def _by_section(keys: Iterable[Key]) -> dict[KeyPath, list[Key]]:
    sections: dict[KeyPath, list[Key]] = {}
    for key in keys:
        sections.setdefault(key.path[:-1], []).append(key)
    return sections


def _about(section: KeyPath) -> str:
    model: type[BaseModel] = RunConfig
    for part in section:
        annotation = model.model_fields[part].annotation
        assert isinstance(annotation, type)
        model = annotation
    return " ".join((model.__doc__ or "").split())


def _acting(registry: Registry, key: Key) -> str:
    if (refused := key.mark(Refused)) is not None:
        value = "" if refused.value is None else f"`{refused.value}` "
        return cell(f"{value}refused: {refused.reason}")
    if (redundant := key.mark(Redundant)) is not None:
        return cell(f"`{str(redundant.value).lower()}` warned about: {redundant.reason}")
    if key.mark(ByPlugins) is None:
        return ""
    acting = [entry for entry in acting_plugins(registry, key) if entry.distribution in DISTRIBUTIONS]
    return ", ".join(f"{entry.kind} `{entry.name}`" for entry in acting) or "nothing in this repository"


def _cells(option: Option) -> tuple[str, ...]:
    default = option.default if option.default == "required" else f"`{option.default}`"
    return (f"`{option.name}`", cell(option.type), cell(default), cell(option.description))


if __name__ == "__main__":
    sys.stdout.write(reference_page(Registry.load(allow=DISTRIBUTIONS)))
