"""Epochs or batches: of the two keys for the length of a run, only the one from the higher tier applies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rllm.config.compose import Composed
from rllm.config.layers import Tier, layer_from_keys

Compose = Callable[..., Composed]
EPOCHS, BATCHES = "rllm.trainer.total_epochs", "rllm.trainer.total_batches"
NATIVE = {EPOCHS: "trainer.total_epochs", BATCHES: "trainer.total_training_steps"}
"""The same settings by the paths of a backend that shares them."""


@pytest.mark.parametrize(
    ("epochs", "batches", "expected"),
    [
        (Tier.USER, Tier.USER, (3, 7)),
        (Tier.PACKAGED, Tier.PACKAGED, (3, 7)),
        (Tier.COMMAND_LINE, Tier.USER, (3, -1)),
        (Tier.SAVED, Tier.ENVIRONMENT, (3, -1)),
        (Tier.USER, Tier.COMMAND_LINE, (10, 7)),
        (Tier.ENVIRONMENT, Tier.SAVED, (10, 7)),
    ],
)
def test_of_epochs_and_batches_the_higher_tier_counts(
    run_foreign: Compose, epochs: Tier, batches: Tier, expected: tuple[int, int]
) -> None:
    tiers, values = {EPOCHS: epochs, BATCHES: batches}, {EPOCHS: 3, BATCHES: 7}
    natives = ((), (EPOCHS,), (BATCHES,), (EPOCHS, BATCHES)) if Tier.PACKAGED not in tiers.values() else ((),)
    for native in natives:
        keys = sorted(values, key=lambda key: tiers[key])
        names = {key: NATIVE[key] if key in native else key for key in keys}
        given = [layer_from_keys({names[key]: values[key]}, tiers[key].name, tiers[key]) for key in keys]
        result = run_foreign(*given)
        assert (result.value(EPOCHS), result.value(BATCHES)) == expected, native
        steps = None if expected[1] == -1 else 7
        assert [result.value(name) for name in NATIVE.values()] == [expected[0], steps], native
    unlimited = layer_from_keys({EPOCHS: 3}, "a", epochs), layer_from_keys({BATCHES: -1}, "b", batches)
    result = run_foreign(*unlimited)
    assert (result.value(EPOCHS), result.value(BATCHES)) == (3, -1)


def test_run_length_has_its_origin(run_foreign: Compose) -> None:
    result = run_foreign(layer_from_keys({BATCHES: 7}, "my.yaml"), f"{EPOCHS}=3")
    assert (result.origins[EPOCHS], result.origins[BATCHES]) == ("command line", "command line")
    result = run_foreign(layer_from_keys({EPOCHS: 3}, "my.yaml"), f"{BATCHES}=7")
    assert (result.origins[EPOCHS], result.origins[BATCHES]) == ("default", "command line")
    assert EPOCHS not in result.by_user
