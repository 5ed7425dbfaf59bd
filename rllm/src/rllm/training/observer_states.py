"""States of the observers in a run's checkpoints, and whether observers can replay model calls after a resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.observer import Observer, ObserverPlugin


class ObserverStates:
    """The states of the observers that a run has chosen, by qualified name."""

    def __init__(self, chosen: Sequence[PluginChoice[ObserverPlugin[Any]]], observers: Sequence[Observer]) -> None:
        """`observers` are the observers made from `chosen`, in the same order."""
        self._observers = {
            entry.registered.qualified_name: observer for entry, observer in zip(chosen, observers, strict=True)
        }

    @property
    def can_replay(self) -> bool:
        """True if an observer replays the recorded model calls of unfinished batches after a resume."""
        return any(observer.can_replay for observer in self._observers.values())

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return the states of the observers that have one."""
        states = {name: observer.state_dict() for name, observer in self._observers.items()}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, states: Mapping[str, dict[str, Any]]) -> None:
        """Restore observers' states. A state without its observer is ignored, because observers may be removed."""
        for name, state in states.items():
            if name in self._observers:
                self._observers[name].load_state_dict(state)
