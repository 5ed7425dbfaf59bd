"""The reference page of all config keys, made from the schemas: ``python docs/generate/config_reference.py``."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from page_text import one_line
from pydantic import BaseModel

from rllm.config.paths import KeyPath
from rllm.inspection.describe import Option, describe_field, fill_descriptions, list_options
from rllm.planning.unused_keys import Key, acting_plugins, core_keys
from rllm_core.plugins.discovery import CORE, read_index
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.section import Rejected

DISTRIBUTIONS = (CORE, *sorted(read_index()))
"""The packages of this repository: their plugins are on the page."""

INTRODUCTION = """\
# Config keys

<!-- Made by `make docs` from the schemas; do not edit. A test fails when it is stale. -->

Every key of the core with its meaning, then the keys of the backends. The options of plugins are on the
[page of their kind](kinds.md). `rllm config explain KEY` prints the same with the value in your run.

You set keys in YAML files (`--config FILE`), on the command line (`key=value`, as in Hydra) and from Python. The last
of these sources that sets a key wins: the core's defaults, the backend's YAML file, the environment's defaults, its
recipe for the model, `--config` files in order, the command line. If the type of a key is *plugin*, write the
plugin's name (`rloo`), its name with its package (`rllm-core/rloo`), or a mapping with its options (`{name: grpo,
norm_adv_by_std_in_grpo: false}`).

Below its meaning, each key has its type, its default, and the plugins that read it. If no plugin is listed, the core
reads it. If no part of the run reads a value that you set, the run stops before it starts.
"""


def reference_page(registry: Registry) -> str:
    """The page, in Markdown."""
    fill_descriptions(RunConfig)
    parts = [INTRODUCTION]
    for section, keys in _by_section(core_keys(RunConfig())).items():
        parts.append(f"## `{'.'.join(section)}`\n\n{_about(section)}\n")
        parts += [_key(describe_field(key.dotted, key.field), _acting(registry, key)) for key in keys]
    for entry in registry.all("backend"):
        if entry.distribution in DISTRIBUTIONS:
            parts.append(f"## Backend `{entry.name}`\n")
            parts += [_key(option, "") for option in list_options(entry.plugin.params)]
    return "\n".join(parts)


def _key(option: Option, acting: str) -> str:
    """A heading for each key, so that a search finds it and a link leads to it."""
    default = "required" if option.default == "required" else f"default `{one_line(option.default)}`"
    facts = " · ".join(filter(None, (one_line(option.type), default, acting)))
    return f"### `{option.name}`\n\n{one_line(option.description)}\n\n{facts}\n"


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
    if (rejected := key.mark(Rejected)) is not None:
        if rejected.accepted is not None:
            return f"`{str(rejected.accepted).lower()}` warned about: {one_line(rejected.reason)}"
        value = "" if rejected.value is None else f"`{rejected.value}` "
        return f"{value}rejected: {one_line(rejected.reason)}"
    if key.is_read_by_core:
        return ""
    acting = [entry for entry in acting_plugins(registry, key) if entry.distribution in DISTRIBUTIONS]
    names = ", ".join(f"{entry.kind} `{entry.name}`" for entry in acting)
    return f"read by {names}" if names else "no plugin in this repository reads it"


if __name__ == "__main__":
    sys.stdout.write(reference_page(Registry.load(allow=DISTRIBUTIONS)))
