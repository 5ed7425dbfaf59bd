"""The kinds of plugins, with their hooks and spec classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from rllm_core.contracts import Plugin
from rllm_core.plugins import specs


class Kind(NamedTuple):
    """The hook and the spec class of one kind of plugin."""

    hook: str
    """The name of the function that a plugin implements."""
    record: type[Plugin[Any]]
    """The class of the objects that this function returns."""

    @property
    def plural(self) -> str:
        """The plural for messages: ``estimators``, ``losses``."""
        return self.hook.removeprefix("rllm_")


def _kinds() -> Iterator[tuple[str, Kind]]:
    """Yield all kinds. They are derived from the return types of the hooks."""
    for hook, spec in vars(specs).items():
        if hook.startswith("rllm_"):
            (returned,) = get_args(get_type_hints(spec)["return"])
            record = get_origin(returned) or returned
            yield record.kind, Kind(hook, record)


KINDS: Mapping[str, Kind] = MappingProxyType(dict(_kinds()))
"""All kinds by name. They are listed in the order of their hooks."""
