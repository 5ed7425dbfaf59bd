"""Layers: named sources of configuration values, before they are merged.

A layer is a nested mapping and the name of where it came from, so that every message about a value can say whose it
is. Layers are made from YAML files, from ``key=value`` words of a command line, and from the flat mappings of dotted
keys that plugins give.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

from rllm_core.config.overrides import read_override
from rllm_core.errors import ConfigError

COMMAND_LINE = "command line"
DEEPEST = 64
"""Most levels of a configuration. Real ones have five; a YAML anchor that contains itself has no end."""
_LONGEST_NUMBER = 4096
"""Most bits of a whole number. Python refuses to write numbers of more than 4300 digits as text."""


class Tier(IntEnum):
    """How a layer came about, lowest first. What a user asked for must have an effect; the rest may be idle."""

    PACKAGED = 0
    """The core's and the backend's YAML files."""
    ENVIRONMENT = 1
    """An environment's defaults and recipes."""
    SAVED = 2
    """The configuration of an earlier run that goes on."""
    USER = 3
    """Configuration files and Python."""
    COMMAND_LINE = 4
    """Words and flags of the command line."""


@dataclass(frozen=True)
class Layer:
    """One source of values. `tree` holds only what YAML and JSON share: mappings with text keys, lists and scalars."""

    origin: str
    """Where the values came from: ``default``, ``backend local``, ``my.yaml``, ``command line``, …"""
    tree: dict[str, Any]
    tier: Tier = Tier.USER

    def __post_init__(self) -> None:
        require_plain(self.tree, self.origin)


def layer_from_file(path: str | Path, origin: str | None = None, tier: Tier = Tier.USER) -> Layer:
    """Read a YAML file. An empty file is an empty layer; the origin is the path as given unless another is named."""
    file, name = Path(path), origin or str(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"There is no configuration file `{path}`.", "Check its path.") from None
    except IsADirectoryError:
        raise ConfigError(f"`{path}` is a folder, not a configuration file.", "Name a YAML file in it.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"`{path}` is not UTF-8 text (byte {error.start}).", "Save it as UTF-8.") from error
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be read: {error.strerror}.") from error
    except ValueError as error:  # a path with a null byte
        raise ConfigError(f"{str(path)!r} is not a path: {error}.", "Name a YAML file.") from error
    values = _read_yaml(text, name)
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"`{name}` holds {_described(values)}; a configuration is a mapping of `key: value` lines.")
    return Layer(name, values, tier)


def layers_from_overrides(words: Iterable[str], origin: str = COMMAND_LINE) -> list[Layer]:
    """One layer per ``key=value`` word, in order: where two set the same key, the later one wins.

    The words are read by Hydra's own grammar, so that they mean the same here and in a Hydra script: ``a.b=1``,
    ``a.b=null``, ``a.b=[1,2]``, ``a.b={x:1}``, ``a.b='text with = in it'``. ``rllm/backend=local`` is
    ``rllm.backend=local``; a ``+`` before a key, which Hydra wants for a new key, makes no difference.
    """
    return [layer_from_dotted({key: value}, origin, Tier.COMMAND_LINE) for key, value in map(read_override, words)]


def layer_from_dotted(values: Mapping[str, Any], origin: str, tier: Tier = Tier.USER) -> Layer:
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
    return Layer(origin, tree, tier)


def require_plain(value: Any, origin: str, path: tuple[str, ...] = ()) -> None:
    """Raise ConfigError unless the value is text, a number, true, false, null, or lists and mappings of these.

    Of exactly these types: a NumPy number, which is a float to Python, can be neither merged by OmegaConf nor saved.
    """
    here = f"`{'.'.join(path)}`" if path else "The top level"
    if len(path) > DEEPEST:
        raise ConfigError(f"`{path[0]}` (from {origin}) is nested deeper than {DEEPEST} levels, or contains itself.")
    if type(value) is dict:
        for key, item in value.items():
            if type(key) is not str:
                spelled = f"; on a command line write {'.'.join(path)}.{key}=VALUE" if path else ""
                raise ConfigError(
                    f"{here} (from {origin}) has the key {key!r}, which is not text.", f"Put it in quotes{spelled}."
                )
            require_plain(key, origin, path)
            require_plain(item, origin, (*path, key))
    elif type(value) is list:
        for index, item in enumerate(value):
            require_plain(item, origin, (*path, str(index)))
    elif type(value) is str:
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ConfigError(f"{here} (from {origin}) holds text that is not valid Unicode: {value!r}.")
    elif type(value) is int:
        if value.bit_length() > _LONGEST_NUMBER:
            raise ConfigError(f"{here} (from {origin}) is a number of more than {_LONGEST_NUMBER} bits.")
    elif not (value is None or type(value) in (bool, float)):
        raise ConfigError(
            f"{here} (from {origin}) is of type {type(value).__name__}.",
            "Use text, numbers, true, false, null, lists and mappings.",
        )


def yaml_error(error: Any, name: str) -> ConfigError:
    """What the YAML reader says of a file (a `MarkedYAMLError`), with the place."""
    mark = error.problem_mark or error.context_mark
    place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return ConfigError(f"YAML error in {name}{place}: {error.problem or error.context}.")


def _read_yaml(text: str, name: str) -> Any:
    import yaml

    try:
        return yaml.load(text, Loader=_yaml_loader())  # a subclass of SafeLoader
    except yaml.MarkedYAMLError as error:
        raise yaml_error(error, name) from error
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


def _described(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"only the value {value!r}"
