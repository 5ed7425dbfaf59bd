"""What code leaves changed, told from what other threads of the process do meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from rllm_plugin_kit.surroundings import changes_by

DRAWING = {
    "Python's random numbers": (random.random, lambda: random.seed(0)),
    "NumPy's random numbers": (np.random.random, lambda: np.random.seed(0)),
}


@pytest.mark.parametrize(("name", "act"), [(name, act) for name, acts in DRAWING.items() for act in acts])
def test_drawing_and_seeding_are_seen_however_often_they_were_done_before(name: str, act: Callable[[], object]) -> None:
    assert [changes_by(act), changes_by(act)] == [[name], [name]]


def test_a_number_that_another_thread_draws_at_times_is_not_laid_to_the_code() -> None:
    draws = iter([random.random, lambda: None])
    assert changes_by(lambda: next(draws)()) == []


def test_any_other_change_is_seen_at_the_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "0")
    changes = iter(["1", "1"])
    assert changes_by(lambda: monkeypatch.setenv("MINE", next(changes))) == ["environment variables"]
    assert next(changes) == "1", "one look was enough"


def test_a_change_that_is_excused_is_not_named() -> None:
    assert changes_by(random.random, {"Python's random numbers"}) == []


def test_the_generators_go_on_as_if_nobody_had_looked() -> None:
    python, numpy = random.getstate(), np.random.get_state()[1].tobytes()
    changes_by(random.random)
    assert random.getstate() == python
    assert np.random.get_state()[1].tobytes() == numpy
