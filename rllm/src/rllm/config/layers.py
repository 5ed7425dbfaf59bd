"""Layers: named sources of configuration values, before they are merged.

A layer is a nested mapping and the name of its source, so that every message about a value can name it. Layers come
from YAML files, from ``key=value`` words of a command line, and from flat mappings of dotted keys that plugins give.
Words follow Hydra's grammar. Their numbers follow YAML 1.2, as in files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

from rllm.config.paths import ABSENT, NoSectionError, put_at, split_key, value_at
from rllm.config.yaml_text import DEEPEST, LONGEST, MOST_VALUES, number, read_yaml, too_large
from rllm_core.errors import ConfigError
from rllm_core.files import open_to_read

COMMAND_LINE = "command line"
_MOST_BYTES = 4 * LONGEST
"""Largest size of a configuration file. A character of UTF-8 has at most four bytes."""
_LONGEST_NUMBER = 63
"""Most bits of a whole number: what NumPy and torch take."""


class Tier(IntEnum):
    """Source of a layer, lowest first. Values from a user must have an effect, other values may be unused."""

    PACKAGED = 0
    """The core's and the backend's YAML files."""
    ENVIRONMENT = 1
    """An environment's defaults and recipes."""
    SAVED = 2
    """The configuration of an earlier run that is continued."""
    USER = 3
    """Configuration files and Python."""
    COMMAND_LINE = 4
    """Words and flags of the command line."""


@dataclass(frozen=True)
class Layer:
    """One source of values. `tree` contains only mappings with text keys, lists and scalars, as in YAML and JSON."""

    origin: str
    """Origin of the values: ``default``, ``backend local``, ``my.yaml``, ``command line``, …"""
    tree: dict[str, Any]
    tier: Tier = Tier.USER

    def __post_init__(self) -> None:
        require_plain(self.tree, self.origin)


def layer_from_file(path: str | Path, origin: str | None = None, tier: Tier = Tier.USER) -> Layer:
    """Read a YAML file. An empty file is an empty layer; the origin is the path as given unless another is named."""
    name = origin or str(path)
    text = read_config_text(path)
    values = read_yaml(text, name)
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(
            "not-a-mapping",
            f"`{name}` contains {_describe_value(values)}, but a configuration is a mapping of `key: value` lines.",
            "Write lines such as `data: {train_batch_size: 8}`.",
        )
    return Layer(name, values, tier)


def read_config_text(path: str | Path) -> str:
    """Return the text of a configuration file.

    Raises:
        ConfigError: the file cannot be read, is a pipe or a device, is too large, or is not UTF-8.
    """
    try:
        with open_to_read(Path(path)) as opened:
            read = opened.read(_MOST_BYTES + 1)
        if len(read) > _MOST_BYTES:
            raise ConfigError(
                "config-too-large",
                f"`{path}` has more than {_MOST_BYTES} bytes.",
                "Put data into a separate file, and give its path in the config.",
            )
        return read.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(
            "file-not-found",
            f"There is no configuration file `{path}`.",
            f"Paths start at {Path.cwd()}. To write a file with all values, run `rllm config show > {path}`.",
        ) from None
    except IsADirectoryError:
        raise ConfigError(
            "not-a-file", f"`{path}` is a directory, not a configuration file.", f"Write --config {path}/FILE.yaml."
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            "not-utf8", f"`{path}` is not UTF-8 text (byte {error.start}).", "Save it as UTF-8."
        ) from error
    except OSError as error:
        raise ConfigError(
            "file-unreadable", f"`{path}` cannot be read: {error.strerror}.", f"Check it with `ls -l {path}`."
        ) from error
    except ValueError as error:  # a path with a null byte
        raise ConfigError("bad-value", f"{str(path)!r} is not a path: {error}.", "Name a YAML file.") from error


def layers_from_overrides(words: Iterable[str]) -> list[Layer]:
    """Return one layer per ``key=value`` override, in order. If two set the same key, the later one wins.

    They are read with Hydra's grammar, so that they mean the same here and in a Hydra script: ``a.b=1``,
    ``a.b=null``, ``a.b=[1,2]``, ``a.b={x:1}``, ``a.b='text with = in it'``. ``rllm/backend=local`` means
    ``rllm.backend=local``. Hydra needs a ``+`` before a new key. It makes no difference here.
    """
    read = map(read_override, words)
    return [layer_from_keys({key: value}, COMMAND_LINE, Tier.COMMAND_LINE) for key, value in read]


def layer_from_keys(values: Mapping[str, Any], origin: str, tier: Tier = Tier.USER) -> Layer:
    """Make nested mappings of dotted keys: ``{"rllm.workflow.name": "x"}``."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        path = split_key(key) if isinstance(key, str) else ()
        if not path or not all(path):
            raise ConfigError(
                "bad-key", f"`{key}` (from {origin}) is not a key.", "Write names joined by dots: rllm.rollout.n"
            )
        if value_at(tree, path) is not ABSENT:
            raise ConfigError(
                "duplicate-key",
                f"`{key}` (from {origin}) is given twice in the same place.",
                f"Write {key} only once.",
            )
        try:
            put_at(tree, path, dict(value) if isinstance(value, Mapping) else value)
        except NoSectionError as error:
            raise ConfigError(
                "duplicate-key",
                f"`{key}` (from {origin}) is inside a key that has a value in the same place.",
                f"Remove {key}, or the value of the key around it.",
            ) from error
    return Layer(origin, tree, tier)


def require_plain(value: Any, origin: str) -> None:
    """Raise ConfigError unless the value is text, a number, true, false, null, or lists and mappings of these.

    Of exactly these types: a NumPy number, which is a float to Python, can be neither merged by OmegaConf nor saved.
    """
    for count, (path, item) in enumerate(_walk(value, ())):
        if count == MOST_VALUES:
            raise too_large(origin)
        _require_plain(item, origin, path)


def _walk(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a value and everything in it, including keys, each with its place."""
    yield path, value
    if type(value) is dict:
        for key, item in value.items():
            yield path, key
            yield from _walk(item, (*path, key))
    elif type(value) is list:
        for index, item in enumerate(value):
            yield from _walk(item, (*path, str(index)))


def _require_plain(value: Any, origin: str, path: tuple[str, ...]) -> None:
    here = f"`{'.'.join(path)}` (from {origin})" if path else f"The top level (from {origin})"
    if len(path) > DEEPEST:
        raise ConfigError(
            "nested-too-deeply",
            f"`{path[0]}` (from {origin}) is nested deeper than {DEEPEST} levels, or contains itself.",
            "Use fewer levels, and no object that contains itself.",
        )
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                spelled = f"; on a command line write {'.'.join(path)}.{key}=VALUE" if path else ""
                raise ConfigError(
                    "key-not-text", f"{here} has the key {key!r}, which is not text.", f"Put it in quotes{spelled}."
                )
    elif type(value) is str:
        if "\0" in value or (not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value)):
            raise ConfigError(
                "not-text",
                f"{here} contains text that is not valid Unicode, or a null byte: {value!r:.80}.",
                "Remove these characters.",
            )
    elif type(value) is int:
        if value.bit_length() > _LONGEST_NUMBER:
            raise ConfigError(
                "bad-value-type",
                f"{here} is a whole number of more than {_LONGEST_NUMBER} bits.",
                "Write a smaller number, or put it in quotes to make it text.",
            )
    elif not (value is None or type(value) in (bool, float, list)):
        raise ConfigError(
            "bad-value-type",
            f"{here} is of type {type(value).__name__}.",
            "Use text, numbers, true, false, null, lists and mappings.",
        )


def _describe_value(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"only the value {value!r}"


BACKEND_GROUP = "rllm/backend"
QUOTING = (
    "Write key=value. A value with characters that mean something to Hydra goes in quotes, and the whole word in those "
    "of the shell: 'key=\"a=b\"'."
)
_LONGEST = 120
_WITH_UNDERSCORES = r"[-+]?[0-9.]*[0-9]_[0-9][0-9_.]*(?:[eE][-+]?[0-9]+)?"


def read_override(word: str) -> tuple[str, Any]:
    """Return the dotted key and the value of an override.

    Raises:
        ConfigError: it is not an override, or not one for a single run (a sweep, a deletion, a config group).
    """
    from hydra.errors import HydraException

    if "=" not in word.lstrip("~") and not word.startswith("~"):
        raise ConfigError(
            "bad-override",
            f"`{_short(word)}` is not an override.",
            f"Write key=value, such as rllm.rollout.n=4. For a run, rllm.trainer.experiment_name={_short(word)}.",
        )
    try:
        override = _parser().parse_override(word.strip())
        value = override.value()
    except (HydraException, RecursionError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).partition("\\nSee ")[0].split())
        raise ConfigError(
            "bad-override", f"`{_short(word)}` is not an override that Hydra can read: {reason[:200]}.", QUOTING
        ) from error
    if override.is_delete():
        raise ConfigError(
            "bad-override",
            f"`{_short(word)}` would delete a key, which is not possible.",
            "Remove it to get the default, or write KEY=null.",
        )
    if override.is_sweep_override():
        raise ConfigError(
            "bad-override",
            f"`{_short(word)}` is a sweep over several values.",
            "Start one run per value. Write a list in brackets.",
        )
    key = str(override.key_or_group).strip()
    if not key:
        raise ConfigError(
            "bad-override", f"`{_short(word)}` is not an override.", "Write key=value, such as rllm.rollout.n=4."
        )
    if key == BACKEND_GROUP:
        key = "rllm.backend"
    if "/" in key or override.package is not None:
        raise ConfigError(
            "bad-override",
            f"`{_short(word)}` uses the config group `{key}`, which does not exist.",
            f"The only group is {BACKEND_GROUP}. Write a key as names joined by dots.",
        )
    given = word.partition("=")[2]
    if any(mark in given for mark in "'\"("):  # quoted, or made by a Hydra function: do not convert
        return key, value
    _refuse_odd_groups(word, given)
    # For Hydra, numbers with leading zeros and numbers in other bases are text.
    return key, _with_numbers(value)


def _refuse_odd_groups(word: str, given: str) -> None:
    """Reject numbers such as ``1_0``. For Hydra it is 10, but it is usually a typo for 1.0."""
    for part in re.split(r"[,\[\]{}:]" if "{" in given else r"[,\[\]]", given):
        if re.fullmatch(_WITH_UNDERSCORES, part.strip()) and number(part.strip()) is None:
            raise ConfigError(
                "bad-override",
                f"`{_short(word)}` contains {part.strip()}, which is a number for Hydra and text for YAML.",
                "Write digits in groups of three (1_000) or without `_`. Put text into quotes: 'key=\"1_0\"'.",
            )


def _with_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_numbers(item) for item in value]
    found = number(value) if isinstance(value, str) else None
    return value if found is None else found


@cache
def _parser() -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()


def _short(word: str) -> str:
    return word if len(word) <= _LONGEST else word[: _LONGEST - 1] + "…"
