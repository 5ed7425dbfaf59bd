"""`rllm config convert`: convert a launch script or a configuration of verl or rLLM to a configuration of rllm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rllm.config import (
    KeyPath,
    as_yaml,
    idle_reason,
    key_around,
    known_keys,
    leaves,
    list_fields,
    packaged_values,
    read_config_text,
    read_override,
    read_yaml,
    show_value,
    split_key,
    takes_key,
)
from rllm_core.contracts.backend import Translation
from rllm_core.errors import ConfigError, did_you_mean
from rllm_core.plugins.discovery import find_home_package
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.section import Rejected

if TYPE_CHECKING:
    from rllm.inspection.launch import Launch


YAML = (".yaml", ".yml")
LONGEST = 60
"""Characters of the first column; longer keys push the second aside."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def convert(file: Path) -> None:
    """Convert FILE, a launch script or a YAML file of verl or rLLM, to a configuration of rllm.

    The YAML goes to standard output. A report on every key, including keys without a counterpart, goes to
    standard error. The script is read and never run.

    \b
    Examples:
      rllm config convert run_grpo.sh > run.yaml
      rllm train --config run.yaml --dry-run
    """
    launch = None
    unread: dict[str, str] = {}
    if file.suffix in YAML:
        given = _of_yaml(file)
    else:
        given, unread, launch = _of_script(file)
    converted = convert_keys(given, Registry.load())
    converted.left_out |= unread
    click.echo(as_yaml(converted.tree()), nl=False)
    for line in _report(converted, given, launch):
        click.echo(line, err=True)


def _of_yaml(file: Path) -> dict[str, Any]:
    tree = read_yaml(read_config_text(file), str(file))
    if not isinstance(tree, dict):
        raise ConfigError(
            "not-a-mapping",
            f"{file} is not a configuration: its top level is not a mapping.",
            "Name a YAML file of `key: value` lines.",
        )
    return dict(iterate_leaves(tree))


def _of_script(file: Path) -> tuple[dict[str, Any], dict[str, str], Launch]:
    """Keys with their values, words that cannot be read with the reason, and the launch itself."""
    from rllm.inspection.launch import read_launch

    launch = read_launch(read_config_text(file), str(file))
    given: dict[str, Any] = dict(launch.options)
    unread = {word.text: f"{word.undecided}: set it in the file." for word in launch.overrides if word.undecided}
    for word in launch.overrides:
        if word.undecided:
            continue
        try:
            key, value = read_override(word.text)
        except ConfigError as error:
            unread[word.text] = error.message
        else:
            given[key] = value
    return given, unread, launch


def _report(converted: Conversion, given: dict[str, Any], launch: Launch | None) -> Iterable[str]:
    yield f"Keys with another name ({len(converted.renamed)}):"
    yield from _table(converted.renamed)
    yield f"Keys that keep their name: {len(converted.kept)}"
    if converted.defaults:
        yield f"Defaults of {converted.backend}'s own trainer, where ours differ ({len(converted.defaults)}):"
        yield from _table({key: show_value(value) for key, value in converted.defaults.items()})
    if converted.left_out:
        yield f"Keys without a counterpart ({len(converted.left_out)}):"
        yield from _table(
            {f"{key}={show_value(given[key])}" if key in given else key: why for key, why in converted.left_out.items()}
        )
    if launch is not None and launch.environment:
        yield "Environment variables that the script sets; set those that you need:"
        yield from (f"  {name}={value}" for name, value in launch.environment.items())
    yield from converted.notes


def _table(rows: dict[str, str]) -> Iterable[str]:
    width = min(max(map(len, rows), default=0), LONGEST)
    return [f"  {left:<{width}}  {right}" for left, right in rows.items()]


BACKEND, MODEL, PROFILE, TRACKERS = "rllm.backend", "model.name", "rllm.profile", "rllm.trainer.logger"
OF_VERL, OF_RLLM = "actor_rollout_ref", "rllm"
_HYDRA = ("hydra", "defaults")
_OF_HYDRA = "It belongs to Hydra; `--config FILE` may be given several times."


@dataclass(kw_only=True)
class Conversion:
    """The result of a conversion: new values, and the keys that have no counterpart."""

    backend: str
    values: dict[str, Any] = field(default_factory=dict)
    """Our keys, dotted, with their values."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Their key -> ours."""
    kept: list[str] = field(default_factory=list)
    """Keys with the same name here."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """The entries of `values` that are the other system's defaults."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Their keys without a counterpart -> why."""
    notes: tuple[str, ...] = ()
    """Other differences between the systems."""

    def tree(self) -> dict[str, Any]:
        """Return the configuration as nested mappings, with sections in the order of the documentation."""
        tree: dict[str, Any] = {}
        order = list(RunConfig.model_fields)
        for key in sorted(self.values, key=lambda name: _rank(name, order)):
            node = tree
            *sections, last = split_key(key)
            for part in sections:
                node = node.setdefault(part, {})
            node[last] = self.values[key]
        return tree


def convert_keys(given: Mapping[str, Any], registry: Registry) -> Conversion:
    """Translate each key to a key of rllm.

    Args:
        given: dotted keys with plain values.

    Raises:
        PluginError: the backend for these keys is not installed.
    """
    record = registry.get("backend", find_backend(given, registry)).plugin
    translation = record.translate(given) if record.translate else Translation()
    found = Conversion(
        backend=record.name, values={BACKEND: record.name, **translation.values}, notes=translation.notes
    )
    found.renamed |= {theirs: ours for theirs, ours in translation.renamed.items() if theirs != ours}
    found.kept += [theirs for theirs, ours in translation.renamed.items() if theirs == ours]
    found.left_out |= translation.left_out
    profile = translation.values.get(PROFILE)
    handled = {*translation.renamed, *translation.left_out, BACKEND}
    for key, value in given.items():
        if key not in handled:
            _classify(key, value, record, profile, found)
    _only_trackers_there_are(found, registry)
    found.defaults = {key: value for key, value in translation.defaults.items() if key not in found.values}
    found.values |= found.defaults
    return found


def find_backend(given: Mapping[str, Any], registry: Registry) -> str:
    """Return the backend for the keys: the named backend, or the backend with most of the keys."""
    if (named := given.get(BACKEND)) is not None:
        return str(named)
    if any(split_key(key)[0] == OF_VERL for key in given):
        return "verl"
    own = {entry.plugin.name: known_keys(entry.plugin.params) for entry in registry.all("backend")}
    counts = {name: sum(split_key(key) in keys for key in given) for name, keys in own.items()}
    best = max(counts, key=lambda name: (counts[name], name == "local"), default="local")
    return best if counts.get(best) else "local"


def iterate_leaves(tree: Mapping[str, Any], at: KeyPath = ()) -> Iterator[tuple[str, Any]]:
    """Dotted keys of nested mappings with their values. A mapping that is one value of the core stays whole."""
    for name, value in tree.items():
        path = (*at, str(name))
        if isinstance(value, Mapping) and value and key_around(RunConfig, path) is None:
            yield from iterate_leaves(value, path)
        else:
            yield ".".join(path), value


def _classify(key: str, value: Any, record: Any, profile: str | None, found: Conversion) -> None:
    if key.startswith("--") or split_key(key)[0] in _HYDRA:
        found.left_out[key] = _OF_HYDRA
    elif (row := next((row for row in record.shared_keys if row.native == key), None)) is not None:
        ours = {theirs: core for core, theirs in row.spelled if isinstance(theirs, str | None)}
        found.values.setdefault(row.rllm, ours.get(value, value) if isinstance(value, str | None) else value)
        found.renamed[key] = row.rllm
    elif (reason := _find_rejection_reason(key, value) or idle_reason(record, key, profile)) is not None:
        found.left_out[key] = reason
    elif _is_known(key, record, profile):
        found.values.setdefault(key, value)
        found.kept.append(key)
    elif key == MODEL and record.model_key != MODEL:
        found.values.setdefault(record.model_key, value)
        found.renamed[key] = record.model_key
    else:
        found.left_out[key] = f"There is no such key. {did_you_mean(key, _all_keys(record, profile))}".strip()


def _find_rejection_reason(key: str, value: Any) -> str | None:
    """Return why no backend accepts a value of the core's key. None if it is accepted."""
    about = list_fields(RunConfig).get(split_key(key))
    for mark in about.metadata if about else ():
        if isinstance(mark, Rejected) and about and value != about.default and mark.value in (None, value):
            return mark.reason
    return None


def _all_keys(record: Any, profile: str | None) -> list[str]:
    packaged = [path for path, _ in leaves(packaged_values(record, profile))] if record.config_yaml else []
    return [".".join(path) for path in (*known_keys(RunConfig), *known_keys(record.params), *packaged)]


def _is_known(key: str, record: Any, profile: str | None) -> bool:
    path = split_key(key)
    of_core = key_around(RunConfig, path) is not None
    return of_core or path in list_fields(record.params) or takes_key(record, profile, path)


def _only_trackers_there_are(found: Conversion, registry: Registry) -> None:
    names = found.values.get(TRACKERS)
    if names is None:
        return
    names = names if isinstance(names, list) else [names]
    known = {entry.plugin.name for entry in registry.all("tracker")}
    unknown = [
        name for name in names if isinstance(name, str) and name not in known and not find_home_package("tracker", name)
    ]
    if unknown:
        theirs = next((key for key, ours in found.renamed.items() if ours == TRACKERS), TRACKERS)
        found.left_out[f"{theirs}: {', '.join(unknown)}"] = "No such tracker: rllm plugins list --kind tracker."
    found.values[TRACKERS] = [name for name in names if name not in unknown]


def _rank(key: str, order: list[str]) -> tuple[int, str]:
    section = split_key(key)[0]
    return (order.index(section) if section in order else len(order), key)
