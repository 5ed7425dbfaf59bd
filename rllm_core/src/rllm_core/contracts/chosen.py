"""A plugin's record as the registry has it, and as a run has chosen it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from rllm_core.contracts.plugin import Plugin
from rllm_core.errors import PluginError, RllmError

FAMILY = ":"
"""What stands between a plugin's name and a family of it; see `Plugin.family_option`."""

RecordT = TypeVar("RecordT", bound=Plugin[Any])


@dataclass(frozen=True, kw_only=True)
class Registered(Generic[RecordT]):
    """A record and where it comes from."""

    plugin: RecordT
    distribution: str
    version: str

    @property
    def kind(self) -> str:
        return self.plugin.kind

    @property
    def name(self) -> str:
        return self.plugin.name

    def load(self) -> Any:
        """The implementation, loaded once; raises `PluginError` naming the plugin when it cannot be loaded."""
        return self._implementation

    @cached_property
    def _implementation(self) -> Any:
        try:
            return self.plugin.load()
        except RllmError:
            raise
        except Exception as error:
            raise PluginError(
                "plugin-not-loadable",
                f"{self.kind} {self.qualified_name} cannot be loaded: {type(error).__name__}: {error}.",
                "`rllm plugins doctor` shows where it fails.",
            ) from error

    @property
    def qualified_name(self) -> str:
        """``rllm-estimators/opo``: what to write in config where `name` alone is not unique."""
        return f"{self.distribution}/{self.plugin.name}"


@dataclass(frozen=True, kw_only=True)
class PluginChoice(Generic[RecordT]):
    """A plugin with its options. `registered.plugin.load()` gives the implementation, which takes `params`."""

    registered: Registered[RecordT]
    params: Any
    """An instance of the record's `params` model."""
    own: frozenset[str] = frozenset()
    """Names of the options that the choice itself sets; all others are defaults, or taken over from shared keys."""

    @property
    def plugin(self) -> RecordT:
        return self.registered.plugin

    @property
    def qualified_name(self) -> str:
        """With `params` what to send to another process, where the record cannot go."""
        return self.registered.qualified_name
