"""The values of several layers in one tree, with each value's layer, and the meaning of their interpolations.

``${rllm.trainer.seed}`` takes the value of a different key. ``${oc.env:HOME}`` takes it from an environment variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

from pydantic import BaseModel

from rllm.config.keys import DEFAULT, fill_defaults
from rllm.config.layers import Tier, require_plain
from rllm.config.paths import ABSENT, KeyPath, NoSectionError, leaves, put_at, split_key, value_at
from rllm.config.problems import expected_mapping, show_value, wrong_value
from rllm_core.errors import ConfigError

MISSING = "???"
"""Marks a value that the user must set before the run can start."""


class Origin(NamedTuple):
    """The layer that a value came from, and its tier."""

    label: str
    tier: Tier


class Entry(NamedTuple):
    """The value of one key, and its origin."""

    key: str
    value: Any
    """The value, resolved. `ABSENT` if no layer sets the key."""
    written: Any
    """Text of the value with interpolations, to write instead of the value. None if the value itself is written."""
    origin: str
    tier: Tier

    @property
    def is_set(self) -> bool:
        """True if the key has a value other than null and ``???``."""
        return self.value is not ABSENT and self.value is not None and self.value != MISSING

    @property
    def by_user(self) -> bool:
        """True if a user set the key to a value in this run."""
        return self.is_set and self.tier >= Tier.USER

    def __str__(self) -> str:
        return f"`{self.key}` is {show_value(self.value)} (from {self.origin})"


@dataclass
class MergedValues:
    """Values of several layers in one tree, interpolations not yet resolved."""

    tree: dict[str, Any] = field(default_factory=dict)
    marks: dict[KeyPath, Origin] = field(default_factory=dict)
    """Origin of every value that a layer set. Keys below it have the same origin unless they have their own mark."""
    warnings: tuple[str, ...] = ()
    """Warnings for the user about values that do not apply."""

    def origin(self, path: KeyPath) -> str:
        """Return the origin of a key's value. For a section with several origins, return all of them."""
        return self.mark(path).label

    def tier(self, path: KeyPath) -> Tier:
        """Return the highest tier among the origins of a key."""
        return self.mark(path).tier

    def mark(self, path: KeyPath) -> Origin:
        """Return the labels of all origins of a key as one, and their highest tier."""
        above = (self.marks[path[:length]] for length in range(len(path), 0, -1) if path[:length] in self.marks)
        found = [*islice(above, 1), *(self.marks[key] for key in self._marked_below(path))]
        label = ", ".join(dict.fromkeys(origin.label for origin in found))
        return Origin(label, max((origin.tier for origin in found), default=Tier.PACKAGED))

    def _marked_below(self, path: KeyPath) -> list[KeyPath]:
        if not isinstance(value_at(self.tree, path), dict):
            return []  # Most keys hold a value: looking through all marks for each would take quadratic time.
        return [key for key in self.marks if len(key) > len(path) and key[: len(path)] == path]

    def clear_origin(self, path: KeyPath) -> None:
        """Remove the marks of a key and of all keys below it, while its value is still in the tree."""
        for key in (path, *self._marked_below(path)):
            self.marks.pop(key, None)

    def early_value(self, key: str) -> Any:
        """Return the value of a key before everything is resolved. None if it has no value yet."""
        node: Any = self.tree
        path = split_key(key)
        for depth, part in enumerate(path):
            if not isinstance(node, dict):
                origin = self.origin(path[:depth])
                raise expected_mapping(path[:depth], node, origin)
            if part not in node:
                return None
            node = node[part]
            if isinstance(node, str) and "${" in node:
                return replace(self, tree=self.resolve_interpolations()).early_value(key)
        return None if node == MISSING else node

    def read(self, keys: Iterable[str], schema: type[BaseModel] | None = None) -> dict[str, Entry]:
        """Return the entries of keys. Interpolations are resolved only if these keys have some.

        An external system's configuration may contain hundreds of interpolations, and resolving these is very slow.
        Values from environment variables are written with them, because they may be secrets.

        Args:
            schema: provides the values of its keys that no layer sets.
        """
        paths = {key: split_key(key) for key in keys}
        is_open = any(_is_open(self.tree, path) for path in paths.values())
        tree = self.resolve_interpolations() if is_open else self.tree
        if schema is not None:
            fill_defaults(tree := deepcopy(tree), schema)
        entries: dict[str, Entry] = {}
        for key, path in paths.items():
            origin, tier = self.mark(path)
            text = value_at(self.tree, path)
            written = text if is_from_environment(text) else None
            entries[key] = Entry(key, value_at(tree, path), written, origin or DEFAULT, tier)
        return entries

    def replace_entries(self, entries: Iterable[Entry], warnings: Iterable[str] = ()) -> MergedValues:
        """Return the values with some entries replaced, as the highest layer would do it."""
        changed = MergedValues(deepcopy(self.tree), dict(self.marks), (*self.warnings, *warnings))
        for key, value, written, origin, tier in entries:
            path = split_key(key)
            changed.clear_origin(path)
            try:
                put_at(changed.tree, path, deepcopy(escape(value) if written is None else written))
            except NoSectionError as error:
                given = wrong_value(error.path, error.value, changed.origin(error.path))
                raise ConfigError(
                    "not-a-mapping", f"{given} and cannot hold `{key}`.", "Write its keys one by one."
                ) from error
            changed.marks[path] = Origin(origin, tier)
        return changed

    def resolve(self, schema: type[BaseModel] | None = None) -> dict[str, Any]:
        """Return the tree with every interpolation replaced by its value.

        Args:
            schema: its defaults are added for keys that no layer sets, and marked.

        Raises:
            ConfigError: a value is missing.
        """
        tree = self.resolve_interpolations()
        missing = [path for path, value in leaves(tree, into_lists=True) if value == MISSING]
        if missing:
            lines = [f"`{'.'.join(path)}` must be given: it is `???` in {self.origin(path)}." for path in missing]
            raise ConfigError("missing-key", "\n".join(lines), f"Set it, such as {'.'.join(missing[0])}=VALUE.")
        if schema is not None:
            self.marks |= dict.fromkeys(fill_defaults(tree, schema), Origin(DEFAULT, Tier.PACKAGED))
        return tree

    def resolve_interpolations(self) -> dict[str, Any]:
        """Return the tree with every interpolation replaced. A ``???`` stays unless an interpolation points to it."""
        if "${" not in str(self.tree):
            return self.tree
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            tree = OmegaConf.to_container(OmegaConf.create(self.tree), resolve=True)
        except OmegaConfBaseException as error:
            raise self._interpolation_error(error.full_key or "", str(error).partition("\n")[0]) from error
        except RecursionError:
            raise ConfigError(
                "bad-interpolation",
                "An interpolation is nested too deeply.",
                "Write the value itself instead of ${KEY}.",
            ) from None
        assert isinstance(tree, dict)
        plain: dict[str, Any] = {str(key): value for key, value in tree.items()}
        require_plain(plain, "interpolations")
        return plain

    def _interpolation_error(self, full_key: str, reason: str) -> ConfigError:
        path = tuple(part for part in re.split(r"[.\[\]]+", full_key) if part)
        value: Any = self.tree
        for part in path:
            if isinstance(value, dict):
                value = value.get(part)
            elif isinstance(value, list) and part.isdecimal():
                # The failing item may be in a list that an interpolation resolves to, and not in this list.
                value = dict(enumerate(value)).get(int(part))
        shown = f" is `{value}`" if isinstance(value, str) else ""
        return ConfigError(
            "bad-interpolation",
            f"`{full_key}`{shown} (from {self.origin(path)}), which cannot be resolved: {reason}.",
            "An interpolation names another key, such as ${rllm.trainer.seed}; "
            "write \\${ for the characters themselves.",
        )


def is_from_environment(written: Any) -> bool:
    """True if a value, in its unresolved form, uses an environment variable."""
    return "${oc.env:" in str(written)


def escape(value: Any) -> Any:
    """Write resolved values so that reading them resolves nothing again: ``${`` becomes ``\\${``."""
    if isinstance(value, dict):
        return {key: escape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [escape(item) for item in value]
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    return value


def _is_open(tree: Any, path: KeyPath) -> bool:
    """True if the value of a key contains an interpolation, or a section above it is one."""
    for part in path:
        if not isinstance(tree, dict):
            break
        tree = tree.get(part)
    return "${" in str(tree)
