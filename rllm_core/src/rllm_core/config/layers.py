"""Layers: named sources of configuration values, before they are merged.

A layer is a nested mapping and the name of where it came from, so that every message about a value can say whose it
is. Layers are made from YAML files, from ``key=value`` words of a command line, and from the flat mappings of dotted
keys that plugins give.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rllm_core.errors import ConfigError

COMMAND_LINE = "command line"
DEEPEST = 64
"""Most levels of a configuration. Real ones have five; a YAML anchor that contains itself has no end."""


@dataclass(frozen=True)
class Layer:
    """One source of values. `tree` holds only what YAML and JSON share: mappings with text keys, lists and scalars."""

    origin: str
    """Where the values came from: ``default``, ``backend local``, ``my.yaml``, ``command line``, …"""
    tree: dict[str, Any]

    def __post_init__(self) -> None:
        require_plain(self.tree, self.origin)


def layer_from_file(path: str | Path, origin: str | None = None) -> Layer:
    """Read a YAML file. An empty file is an empty layer; the origin is the path as given unless another is named."""
    file, name = Path(path), origin or str(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"There is no configuration file `{path}`.", "Check the path given to --config.") from None
    except IsADirectoryError:
        raise ConfigError(f"`{path}` is a folder, not a configuration file.", "Name a YAML file in it.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"`{path}` is not UTF-8 text (byte {error.start}).", "Save it as UTF-8.") from error
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be read: {error.strerror}.") from error
    values = _read_yaml(text, name)
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"`{name}` holds {_described(values)}; a configuration is a mapping of `key: value` lines.")
    return Layer(name, values)


def layers_from_overrides(words: Iterable[str], origin: str = COMMAND_LINE) -> list[Layer]:
    """One layer per ``key=value`` word, in order: where two set the same key, the later one wins.

    Values are YAML as Hydra users write it: ``a.b=1``, ``a.b=null``, ``a.b=[1,2]``, ``a.b={x: 1}``; nothing after
    ``=`` is the empty text. ``rllm/backend=local`` is Hydra's spelling of ``rllm.backend=local``.
    """
    layers = []
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"`{word}` is not an override.", "Write key=value, such as rllm.rollout.n=4.")
        key = key.strip()
        if key[0] in "+~":
            raise ConfigError(f"`{word}` starts with `{key[0]}`, which has no meaning here.", "Write key=value.")
        if key == "rllm/backend":
            key = "rllm.backend"
        value = _read_yaml(text, f"{origin}, `{word}`") if text else ""
        _refuse_unspaced_colon(value, word)
        layers.append(layer_from_dotted({key: value}, origin))
    return layers


def layer_from_dotted(values: Mapping[str, Any], origin: str) -> Layer:
    """Make nested mappings of dotted keys: ``{"rllm.workflow.name": "x"}``."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *sections, last = key.split(".") if isinstance(key, str) else [""]
        if not all((*sections, last)):
            raise ConfigError(f"`{key}` (from {origin}) is not a key.", "Write names joined by dots: rllm.rollout.n")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
            if not isinstance(node, dict):
                raise ConfigError(f"`{key}` (from {origin}) lies within a key that has a value in the same place.")
        if last in node:
            raise ConfigError(f"`{key}` (from {origin}) is given twice in the same place.")
        node[last] = dict(value) if isinstance(value, Mapping) else value
    return Layer(origin, tree)


def require_plain(value: Any, origin: str, path: tuple[str, ...] = ()) -> None:
    """Raise ConfigError unless the value is text, a number, true, false, null, or lists and mappings of these."""
    here = f"`{'.'.join(path)}`" if path else "The top level"
    if len(path) > DEEPEST:
        raise ConfigError(f"`{path[0]}` (from {origin}) is nested deeper than {DEEPEST} levels, or contains itself.")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ConfigError(
                    f"{here} (from {origin}) has the key {key!r}, which is not text.", "Put it in quotes."
                )
            require_plain(key, origin, path)
            require_plain(item, origin, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            require_plain(item, origin, (*path, str(index)))
    elif isinstance(value, str):
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ConfigError(f"{here} (from {origin}) holds text that is not valid Unicode: {value!r}.")
    elif not (value is None or isinstance(value, bool | int | float)):
        raise ConfigError(
            f"{here} (from {origin}) is of type {type(value).__name__}.",
            "Use text, numbers, true, false, null, lists and mappings.",
        )


def _read_yaml(text: str, name: str) -> Any:
    import yaml

    try:
        return yaml.load(text, Loader=_yaml_loader())  # a subclass of SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"YAML error in {name}{place}: {error.problem or error.context}.") from error
    except RecursionError:
        raise ConfigError(f"YAML error in {name}: nested too deeply.") from None
    except (yaml.YAMLError, ValueError, LookupError, TypeError) as error:
        # Explicit tags (`!!int x`) and numbers of absurd length fail inside the reader with Python's own errors.
        raise ConfigError(f"YAML error in {name}: {error}.") from error


@cache
def _yaml_loader() -> Any:
    # OmegaConf's own reader, as Hydra uses it: `1e-4` is a number, dates stay text, a key given twice is an error.
    from omegaconf._utils import get_yaml_loader

    return get_yaml_loader()


def _refuse_unspaced_colon(value: Any, word: str) -> None:
    """``{x:1}`` is ``{"x:1": null}`` to YAML, which nobody means."""
    if isinstance(value, dict):
        for key, item in value.items():
            if item is None and isinstance(key, str) and ":" in key:
                raise ConfigError(f"`{word}`: YAML needs a space after the colon.", "Write {x: 1}, not {x:1}.")
            _refuse_unspaced_colon(item, word)
    elif isinstance(value, list):
        for item in value:
            _refuse_unspaced_colon(item, word)


def _described(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"only the value {value!r}"
