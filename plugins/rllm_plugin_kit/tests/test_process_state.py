"""What code leaves changed, told from what other threads of the process do meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from rllm_plugin_kit.process_state import find_changes

DRAWING = {
    "Python's random numbers": (random.random, lambda: random.seed(0)),
    "NumPy's random numbers": (np.random.random, lambda: np.random.seed(0)),
}


@pytest.mark.parametrize(("name", "act"), [(name, act) for name, acts in DRAWING.items() for act in acts])
def test_repeated_drawing_and_seeding_are_detected(name: str, act: Callable[[], object]) -> None:
    assert [find_changes(act), find_changes(act)] == [[name], [name]]


def test_draws_of_other_threads_are_ignored() -> None:
    draws = iter([random.random, lambda: None])
    assert find_changes(lambda: next(draws)()) == []


def test_other_changes_are_detected_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "0")
    changes = iter(["1", "1"])
    assert find_changes(lambda: monkeypatch.setenv("MINE", next(changes))) == ["environment variables"]
    assert next(changes) == "1", "one look was enough"


def test_an_excused_change_is_not_reported() -> None:
    assert find_changes(random.random, {"Python's random numbers"}) == []


def test_checks_do_not_change_the_generators() -> None:
    python, numpy = random.getstate(), np.random.get_state()[1].tobytes()
    find_changes(random.random)
    assert random.getstate() == python
    assert np.random.get_state()[1].tobytes() == numpy
