"""The kinds of plugins: what belongs to each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from rllm_core.contracts import Plugin
from rllm_core.plugins import specs


class Kind(NamedTuple):
    """What belongs to one kind of plugin."""

    hook: str
    """The function a plugin implements."""
    record: type[Plugin[Any]]
    """The class of what that function returns."""

    @property
    def plural(self) -> str:
        """For sentences: ``estimators``, ``losses``."""
        return self.hook.removeprefix("rllm_")


def _kinds() -> Iterator[tuple[str, Kind]]:
    """What the hooks return says which kinds there are."""
    for hook, spec in vars(specs).items():
        if hook.startswith("rllm_"):
            (returned,) = get_args(get_type_hints(spec)["return"])
            record = get_origin(returned)
            yield record.kind, Kind(hook, record)


KINDS: Mapping[str, Kind] = MappingProxyType(dict(_kinds()))
"""All kinds by name, in the order of their hooks, in which they are listed."""
