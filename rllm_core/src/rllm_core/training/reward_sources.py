"""What decides the rewards of a run beside its options, so that a resumed run does not go on with another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from rllm_core.errors import CheckpointError, PluginError, failures_as
from rllm_core.rollout.scoring import WeightedReward

LONGEST = 80
"""Characters of a line that a message shows."""


class RewardSources:
    """The sources of a run's rewards, as they are when it starts."""

    def __init__(self, rewards: Sequence[WeightedReward], on_changed: Literal["error", "warn"]) -> None:
        self._on_changed = on_changed
        self._texts: dict[str, str] = {}
        for entry in rewards:
            plugin = entry.chosen.plugin
            if plugin.sources is not None:
                with failures_as(PluginError, f"`sources` of reward {entry.chosen.qualified_name}"):
                    found = plugin.sources(entry.chosen.params)
                self._texts |= {f"{plugin.name}: {name}": text for name, text in found.items()}

    def state_dict(self) -> dict[str, str]:
        """Reward and source to the source's text; for a checkpoint."""
        return dict(self._texts)

    def check_same(self, before: Mapping[str, str], checkpoint: Path, warn: Callable[[str], None]) -> None:
        """Compare with what a checkpoint has. Rewards that only one of them has are the user's choice.

        Raises:
            CheckpointError: a source differs, and ``rllm.trainer.on_changed_reward`` is ``error``.
        """
        for name in sorted(before.keys() & self._texts.keys()):
            if before[name] == self._texts[name]:
                continue
            changed = f"The source of reward {name} changed after {checkpoint} was made: "
            changed += _difference(before[name], self._texts[name])
            if self._on_changed == "error":
                raise CheckpointError(
                    changed,
                    "Restore it, or accept the new one: add rllm.trainer.on_changed_reward=warn to this command.",
                )
            warn(changed)


def _difference(before: str, now: str) -> str:
    """The first line that differs, on both sides."""
    pairs = zip_longest(before.splitlines(), now.splitlines())
    for number, (was, is_now) in enumerate(pairs, 1):
        if was != is_now:
            return f"line {number} was {_shown(was)} and is {_shown(is_now)}."
    return "its line ends differ."


def _shown(line: str | None) -> str:
    return "not there" if line is None else repr(line[:LONGEST])
