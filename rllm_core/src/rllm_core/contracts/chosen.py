"""A plugin spec as the registry stores it, and as a run chooses it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from rllm_core.contracts.plugin import Plugin
from rllm_core.errors import PluginError, RllmError

FAMILY = ":"
"""The separator between a plugin's name and a family member; see `Plugin.family_option`."""

RecordT = TypeVar("RecordT", bound=Plugin[Any])


@dataclass(frozen=True, kw_only=True)
class Registered(Generic[RecordT]):
    """A plugin spec with the package that it comes from."""

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
        """Return the implementation. It is loaded only once.

        Raises:
            PluginError: the implementation cannot be loaded. The message contains the plugin's name.
        """
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
        """The unique name, such as ``rllm-estimators/opo``. Use it in the config if several packages offer the same
        `name`."""
        return f"{self.distribution}/{self.plugin.name}"


@dataclass(frozen=True, kw_only=True)
class PluginChoice(Generic[RecordT]):
    """A plugin with its options. `registered.load()` returns the implementation, which takes `params`."""

    registered: Registered[RecordT]
    params: Any
    """An instance of the spec's `params` model."""
    own: frozenset[str] = frozenset()
    """Names of the options that the choice itself sets. All other options are defaults or come from shared keys."""

    @property
    def plugin(self) -> RecordT:
        return self.registered.plugin

    @property
    def qualified_name(self) -> str:
        """The name to send to another process together with `params`, because a plugin spec cannot be sent."""
        return self.registered.qualified_name
