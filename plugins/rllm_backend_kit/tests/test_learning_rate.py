"""The learning rate over a run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given, strategies as st

from rllm_backend_kit.learning_rate import learning_rate


@dataclass(frozen=True)
class Settings:
    learning_rate: float
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps_ratio: float = 0.0


schedules = st.sampled_from(["constant", "linear", "cosine"])


def _rates(total: int, **settings: object) -> list[float]:
    section = Settings(learning_rate=2.0, **settings)  # type: ignore[arg-type]
    return [learning_rate(section, step, total) for step in range(total)]


@given(schedule=schedules, ratio=st.floats(0, 1), total=st.integers(1, 300))
def test_rates_are_positive_and_peak_after_warm_up(schedule: str, ratio: float, total: int) -> None:
    rates = _rates(total, lr_schedule=schedule, warmup_steps_ratio=ratio)
    assert all(0 < rate <= 2.0 for rate in rates)
    peak = rates.index(max(rates))
    assert all(later > earlier for earlier, later in itertools.pairwise(rates[: peak + 1]))
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates[peak:]))
    assert max(rates) == 2.0


def test_warm_up_is_linear_and_starts_above_zero() -> None:
    assert _rates(20, warmup_steps_ratio=0.25)[:7] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0, 2.0, 2.0])


@given(schedule=schedules, beyond=st.integers(0, 500))
def test_rates_beyond_the_end_are_not_negative(schedule: str, beyond: int) -> None:
    settings = Settings(learning_rate=2.0, lr_schedule=schedule)  # type: ignore[arg-type]
    assert learning_rate(settings, 100 + beyond, 100) == (2.0 if schedule == "constant" else 0.0)


@pytest.mark.parametrize("warmup", [0.0, 0.1])
@pytest.mark.parametrize(
    ("schedule", "share"),
    [
        ("constant", lambda done: 1.0),
        ("linear", lambda done: 1 - done),
        ("cosine", lambda done: (1 + math.cos(math.pi * done)) / 2),
    ],
)
def test_rate_after_warm_up_follows_its_curve(schedule: str, share: Callable[[float], float], warmup: float) -> None:
    after = _rates(100, lr_schedule=schedule, warmup_steps_ratio=warmup)[round(100 * warmup) :]
    assert after == pytest.approx([2.0 * share(step / len(after)) for step in range(len(after))])
