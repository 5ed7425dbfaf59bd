"""A chosen loss on its way to another process: no record can be sent, so its name and options are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.loss import LossPlugin
from rllm_core.errors import LossError, RllmError
from rllm_core.plugins import resolve


@dataclass(frozen=True)
class NamedLoss:
    """The name and the options of a loss, as plain data."""

    qualified_name: str
    params: Mapping[str, Any]

    @classmethod
    def from_choice(cls, choice: PluginChoice[LossPlugin[Any]]) -> NamedLoss:
        """The name and the options of a choice."""
        return cls(choice.qualified_name, choice.params.model_dump())

    def resolve(self) -> PluginChoice[LossPlugin[Any]]:
        """The choice, from the plugins of this process.

        Raises:
            LossError: they do not have it.
        """
        try:
            registered = resolve("loss", self.qualified_name)
        except RllmError as error:
            raise LossError(
                error.code,
                f"A worker process cannot use the loss {self.qualified_name!r}: {error.message}",
                error.hint
                or f"Install {self.qualified_name.rpartition('/')[0]} on every machine, in the same version.",
            ) from error
        return PluginChoice(registered=registered, params=registered.plugin.params.model_validate(dict(self.params)))
