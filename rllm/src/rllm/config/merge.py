"""Merge layers, and record which layer every value came from.

Mappings merge key by key. Every other value replaces the earlier one. ``???`` in a layer keeps an earlier value.
``OmegaConf.merge`` does the same (a test compares the two), with three differences:

- Plugin choices follow their own rule, see `remaining_options`.
- A value of another type replaces the earlier one too (a list over a mapping), so that validation can report it.
- An empty mapping on the command line empties a mapping. There is no other way to do this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import cache
from typing import Any

from pydantic import BaseModel

from rllm.config.keys import always_sections, choice_keys, known_keys, matches, named_sections
from rllm.config.layers import COMMAND_LINE, Layer, Tier
from rllm.config.paths import ABSENT, KeyPath
from rllm.config.problems import expected_mapping, wrong_value
from rllm.config.values import MISSING, MergedValues, Origin
from rllm_core.errors import ConfigError


def merge_layers(layers: Iterable[Layer], schemas: Iterable[type[BaseModel]]) -> MergedValues:
    """Merge layers, lowest first. The schemas say which keys are plugin choices."""
    choices, holders, sections, no_null = _rules(tuple(schemas))
    merged = MergedValues()

    def merge(lower: dict[str, Any], upper: Mapping[str, Any], at: KeyPath, origin: Origin) -> None:
        if at in sections:
            _drop_options_of_replaced_name(merged, lower, upper, at, sections[at])
        for key, value in upper.items():
            path, earlier = (*at, key), lower.get(key, ABSENT)
            # In files, `rllm:` with no keys below it is ignored: the user may have commented them out.
            empty = value is None and path in no_null and origin.tier is not Tier.COMMAND_LINE
            if earlier is not ABSENT and (value == MISSING or empty):
                continue
            if isinstance(value, dict) and isinstance(earlier, str) and "${" in earlier:
                lower[key] = earlier = _mapping_behind(merged.tree, path, earlier)
            if value == {} and origin.tier >= Tier.USER and matches(path, choices):
                raise ConfigError(
                    "empty-choice",
                    f"{wrong_value(path, value, origin.label)}: it chooses no plugin and sets no option.",
                    "Write NAME or {name: NAME, option: value}, or remove the key.",
                )
            if isinstance(value, dict) and matches(path, choices):
                lower[key] = earlier = remaining_options(earlier, value)
                if not earlier:
                    merged.clear_origin(path)
                    merged.marks[path] = origin
            if value == {} and origin.tier is Tier.COMMAND_LINE and path in holders:
                raise ConfigError(
                    "empty-choice",
                    f"{wrong_value(path, value, origin.label)}: it sets no key of this section.",
                    "Write its keys one by one, such as rllm.rollout.n=4, or remove the key.",
                )
            if isinstance(value, dict) and path in holders and _is_plain_value(earlier):
                raise expected_mapping(path, earlier, merged.origin(path))
            # Not a section, whose keys must all stay, nor a choice, whose name stays.
            emptied = value == {} and path not in holders and not matches(path, choices)
            # A saved configuration may also contain overrides of an earlier command line.
            clears = emptied and (origin.tier is Tier.COMMAND_LINE or origin.label == COMMAND_LINE)
            if isinstance(value, dict) and isinstance(earlier, dict) and (value or earlier) and not clears:
                merge(earlier, value, path, origin)
            else:
                merged.clear_origin(path)
                lower[key] = deepcopy(value)
                merged.marks[path] = origin

    for layer in layers:
        merge(merged.tree, layer.tree, (), Origin(layer.origin, layer.tier))
    return merged


@cache
def _rules(
    schemas: tuple[type[BaseModel], ...],
) -> tuple[frozenset[KeyPath], frozenset[KeyPath], dict[KeyPath, str], frozenset[KeyPath]]:
    """Return the choices, the sections, those that choose by ``name``, and the sections that cannot be null."""
    choices = frozenset[KeyPath]().union(*(choice_keys(schema) for schema in schemas))
    holders = frozenset(key[:-1] for schema in schemas for key in known_keys(schema))
    named = {path: options for schema in schemas for path, options in named_sections(schema).items()}
    return choices, holders, named, frozenset(path for schema in schemas for path in always_sections(schema))


def _is_plain_value(value: Any) -> bool:
    """True if a value is not a mapping, not missing, and cannot become a mapping later."""
    if isinstance(value, str):
        return value != MISSING and "${" not in value
    return value is not ABSENT and not isinstance(value, dict | None)


def remaining_options(earlier: Any, later: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a plugin choice that remain when a mapping is merged over it.

    - A different name: nothing remains. Options of the replaced plugin mean nothing to the new one.
    - The same name, or no name: everything remains, so that you can change one option. A bare name is a mapping here.

    (A bare name merged over a choice replaces the whole choice, as every scalar does.)
    """
    kept = {"name": earlier} if isinstance(earlier, str) else earlier
    if not isinstance(kept, dict) or ("name" in later and not _same_plugin(later["name"], kept.get("name"))):
        return {}
    return kept


def _drop_options_of_replaced_name(
    merged: MergedValues, lower: dict[str, Any], upper: Mapping[str, Any], at: KeyPath, options_key: str
) -> None:
    """Apply the rule of `remaining_options` to ``rllm.env`` and ``rllm.workflow``, whose options are next to the name.

    Only options with the same origin as the replaced name are removed. Other options may belong to the new name, and
    validation rejects them if they do not.
    """
    name, options = lower.get("name"), lower.get(options_key)
    if not name or not isinstance(options, dict) or "name" not in upper or _same_plugin(upper["name"], name):
        return
    for option in list(options):
        path = (*at, options_key, option)
        if merged.origin(path) == merged.origin((*at, "name")):
            del options[option]
            merged.clear_origin(path)


def _same_plugin(name: Any, other: Any) -> bool:
    """True if two spellings name the same plugin, such as ``grpo`` and ``rllm-core/grpo``."""
    if name in (MISSING, other):
        return True
    if not (isinstance(name, str) and isinstance(other, str)) or ("/" in name and "/" in other):
        return False
    return name.rpartition("/")[2] == other.rpartition("/")[2]


def _mapping_behind(tree: dict[str, Any], path: KeyPath, text: str) -> Any:
    """Return the mapping that an interpolation points to, so that single keys can be merged over it. Else `text`."""
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        node: Any = OmegaConf.create(tree)
        for key in path:
            node = node[key]
    except (OmegaConfBaseException, RecursionError):
        return text  # resolving reports it, if it is still there then
    return OmegaConf.to_container(node, resolve=False) if isinstance(node, DictConfig) else text
