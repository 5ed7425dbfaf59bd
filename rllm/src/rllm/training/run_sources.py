"""Inputs of a run other than its options, such as a reward's file. A resumed run must have the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from rllm_core.contracts.chosen import PluginChoice
from rllm_core.errors import CheckpointError, PluginError, failures_as

LONGEST = 80
"""Maximum number of characters of a source line in a message."""


class RunSources:
    """The sources of a run's plugins at the start of the run.

    Args:
        chosen: rewards and workflows.
        on_changed: ``rllm.trainer.on_changed_source``.
    """

    def __init__(self, chosen: Iterable[PluginChoice[Any]], on_changed: Literal["error", "warn"]) -> None:
        self._on_changed = on_changed
        self._texts: dict[str, str] = {}
        for entry in chosen:
            plugin = entry.plugin
            if plugin.sources is not None:
                with failures_as(PluginError, f"`sources` of {plugin.kind} {entry.qualified_name}"):
                    found = plugin.sources(entry.params)
                self._texts |= {f"{plugin.kind} {plugin.name}: {name}": text for name, text in found.items()}

    def state_dict(self) -> dict[str, str]:
        """Return the text of each source, by plugin and source, for a checkpoint."""
        return dict(self._texts)

    def check_same(self, before: Mapping[str, str], checkpoint: Path, warn: Callable[[str], None]) -> None:
        """Compare with a checkpoint's sources. A source that only one of them has is the user's choice.

        Raises:
            CheckpointError: a source differs, and ``rllm.trainer.on_changed_source`` is ``error``.
        """
        for name in sorted(before.keys() & self._texts.keys()):
            if before[name] == self._texts[name]:
                continue
            changed = f"The source of {name} changed after {checkpoint} was made: "
            changed += _difference(before[name], self._texts[name])
            if self._on_changed == "error":
                raise CheckpointError(
                    "source-changed",
                    changed,
                    "Undo the change, or accept it: add rllm.trainer.on_changed_source=warn to this command.",
                )
            warn(changed)


def _difference(before: str, now: str) -> str:
    """Return the first line that differs, on both sides."""
    pairs = zip_longest(before.splitlines(), now.splitlines())
    for number, (was, is_now) in enumerate(pairs, 1):
        if was != is_now:
            return f"line {number} was {_shown(was)} and is {_shown(is_now)}."
    return "its line ends differ."


def _shown(line: str | None) -> str:
    return "not there" if line is None else repr(line[:LONGEST])
