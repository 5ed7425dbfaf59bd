"""Epochs or batches: of the two keys for the length of a run, only the one from the higher tier applies."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from rllm.config.compose import Composed
from rllm.config.layers import Tier, layer_from_dotted

Compose = Callable[..., Composed]
EPOCHS, BATCHES = "rllm.trainer.total_epochs", "rllm.trainer.total_batches"
NATIVE = {EPOCHS: "trainer.total_epochs", BATCHES: "trainer.total_training_steps"}
"""The same settings by the paths of a backend that shares them."""


def _values(composed: Composed, keys: list[str]) -> list[Any]:
    return [composed.value(key) for key in keys]


@pytest.mark.long
def test_of_epochs_and_batches_the_one_from_the_higher_tier_counts(run_foreign: Compose) -> None:
    for epochs, batches in product(Tier, Tier):
        tiers = {EPOCHS: epochs, BATCHES: batches}
        for native in ((), (EPOCHS,), (BATCHES,), (EPOCHS, BATCHES)):
            if any(tiers[key] is Tier.PACKAGED for key in native):
                continue  # in this tier the core's own default counts
            given = [
                layer_from_dotted({NATIVE[key] if key in native else key: value}, tiers[key].name, tiers[key])
                for key, value in sorted({EPOCHS: 3, BATCHES: 7}.items(), key=lambda item: tiers[item[0]])
            ]
            result = run_foreign(*given)
            expected = (3, 7) if epochs is batches else (3, -1) if epochs > batches else (10, 7)
            assert _values(result, [EPOCHS, BATCHES]) == list(expected), native
            assert _values(result, list(NATIVE.values())) == [expected[0], None if expected[1] == -1 else 7], native


@pytest.mark.long
def test_no_number_of_batches_keeps_the_epochs(run_foreign: Compose) -> None:
    for epochs, batches in product(Tier, Tier):
        given = [layer_from_dotted({EPOCHS: 3}, "a", epochs), layer_from_dotted({BATCHES: -1}, "b", batches)]
        assert _values(run_foreign(*given), [EPOCHS, BATCHES]) == [3, -1]


def test_where_the_length_of_a_run_came_from_is_said(run_foreign: Compose) -> None:
    result = run_foreign(layer_from_dotted({BATCHES: 7}, "my.yaml"), f"{EPOCHS}=3")
    assert (result.origins[EPOCHS], result.origins[BATCHES]) == ("command line", "command line")
    result = run_foreign(layer_from_dotted({EPOCHS: 3}, "my.yaml"), f"{BATCHES}=7")
    assert (result.origins[EPOCHS], result.origins[BATCHES]) == ("default", "command line")
    assert EPOCHS not in result.by_user
