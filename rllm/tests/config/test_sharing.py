"""Keys that a backend shares with the core agree, whichever of the two was set, and where."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rllm.config.layers import Tier, layer_from_keys
from rllm.config.merge import merge_layers
from rllm.config.passes import share_keys
from rllm.config.values import MergedValues
from rllm_core.contracts.backend import SharedKey

Table = tuple[SharedKey, ...]
KL, NATIVE_KL = "rllm.algorithm.kl_beta", "actor.kl_loss_coef"
EPS, EPS_HIGH = "rllm.algorithm.eps_clip", "rllm.algorithm.eps_clip_high"
CLIP, CLIP_LOW, CLIP_HIGH = "actor.clip_ratio", "actor.clip_ratio_low", "actor.clip_ratio_high"
STEPS, NATIVE_STEPS = "rllm.trainer.total_batches", "trainer.total_training_steps"
ORIGINS = {
    Tier.PACKAGED: "backend x",
    Tier.ENVIRONMENT: "environment y",
    Tier.SAVED: "run/config.yaml",
    Tier.USER: "my.yaml",
    Tier.COMMAND_LINE: "command line",
}
BY_USER = (Tier.USER, Tier.COMMAND_LINE)
WARMUP, NATIVE_WARMUP = "rllm.algorithm.warmup_steps_ratio", "actor.warmup"
DEFAULTS = {KL: 0.0, NATIVE_KL: 0.5, EPS: 0.2, CLIP: 0.2, CLIP_LOW: 0.2, EPS_HIGH: None, CLIP_HIGH: 0.28}
DEFAULTS |= {WARMUP: None, NATIVE_WARMUP: 0.1, STEPS: -1, "rllm.trainer.total_epochs": 10, "trainer.total_epochs": 30}


def _merged(*values: tuple[Tier, str, Any]) -> MergedValues:
    """Packaged defaults and above them the values given, each of its tier."""
    layers = [layer_from_keys(DEFAULTS, "default", Tier.PACKAGED)]
    layers += [layer_from_keys({key: value}, ORIGINS[tier], tier) for tier, key, value in sorted(values, key=_tier)]
    return merge_layers(layers, [])


def _tier(value: tuple[Tier, str, Any]) -> Tier:
    return value[0]


def _at(merged: MergedValues | dict[str, Any], key: str) -> Any:
    node: Any = merged.tree if isinstance(merged, MergedValues) else merged
    for part in key.split("."):
        node = node[part]
    return node


def test_higher_tier_wins_and_core_wins_ties(table: Table) -> None:
    for core, native in product(Tier, Tier):
        unset = share_keys(_merged((core, KL, None), (native, NATIVE_KL, 0.2)), table)
        assert (_at(unset, KL), _at(unset, NATIVE_KL)) == (0.2, 0.2), "null is no value"
        merged = share_keys(_merged((core, KL, 0.1), (native, NATIVE_KL, 0.2)), table)
        winner = 0.2 if native > core else 0.1
        assert (_at(merged, KL), _at(merged, NATIVE_KL)) == (winner, winner)
        assert merged.tier(("rllm", "algorithm", "kl_beta")) is max(core, native)


def test_null_or_open_backend_value_is_unset(table: Table) -> None:
    for core, native in product(Tier, Tier):
        for nothing in (None, "???"):
            layers = [
                layer_from_keys({NATIVE_KL: nothing}, ORIGINS[native], native),
                layer_from_keys({KL: 0.1}, ORIGINS[core], core),
            ]
            merged = share_keys(merge_layers(layers, []), table)
            said = nothing is None and native in BY_USER and native >= core
            assert [line.startswith(f"`{NATIVE_KL}` is null (from ") for line in merged.warnings] == [True] * said
            assert _at(merged, NATIVE_KL) == 0.1


@pytest.mark.parametrize(("core", "native"), list(product(BY_USER, BY_USER)))
def test_different_values_warn_with_both_and_the_winner(table: Table, core: Tier, native: Tier) -> None:
    sides = [f"`{KL}` is 0.1 (from {ORIGINS[core]})", f"`{NATIVE_KL}` is 0.2 (from {ORIGINS[native]})"]
    loser, winner = sides if native > core else reversed(sides)
    (line,) = share_keys(_merged((core, KL, 0.1), (native, NATIVE_KL, 0.2)), table).warnings
    assert line.startswith(f"{loser}, but {winner}")
    assert line.endswith(f"`{KL}`.")


@pytest.mark.parametrize("native", Tier)
def test_deprecated_native_key_warns_with_core_key(table: Table, native: Tier) -> None:
    told = f"`{NATIVE_KL}` is 0.2 (from {ORIGINS[native]}), which is deprecated: set `{KL}` instead."
    assert share_keys(_merged((native, NATIVE_KL, 0.2)), table).warnings == ((told,) if native in BY_USER else ())
    for core in BY_USER if native in BY_USER else ():
        assert share_keys(_merged((core, KL, 0.2), (native, NATIVE_KL, 0.2)), table).warnings == (told,)
    merged = share_keys(_merged((native, NATIVE_WARMUP, 0.2)), table)
    assert (merged.warnings, _at(merged, WARMUP)) == ((), 0.2), "this path is not deprecated"


@pytest.mark.parametrize(
    ("key", "value", "core", "native"),
    [(STEPS, -1, -1, None), (STEPS, 7, 7, 7), (NATIVE_STEPS, None, -1, None), (NATIVE_STEPS, 7, 7, 7)],
)
def test_a_value_may_be_spelled_differently(table: Table, key: str, value: Any, core: Any, native: Any) -> None:
    merged = share_keys(_merged((Tier.ENVIRONMENT, STEPS, 3), (Tier.USER, key, value)), table)
    assert (_at(merged, STEPS), _at(merged, NATIVE_STEPS)) == (core, native)


def test_origins_say_through_which_key_a_value_came(table: Table) -> None:
    merged = share_keys(_merged((Tier.COMMAND_LINE, NATIVE_KL, 0.1), (Tier.USER, EPS, 0.3)), table)
    assert merged.origin(("rllm", "algorithm", "kl_beta")) == f"command line, by {NATIVE_KL}"
    assert merged.origin(("actor", "kl_loss_coef")) == "command line"
    assert merged.origin(("actor", "clip_ratio_low")) == f"my.yaml, by {EPS}"
    assert merged.origin(("rllm", "algorithm", "eps_clip")) == "my.yaml"


rates = st.none() | st.sampled_from([0.1, 0.2, 0.28, 0.3, "???", "text", "${actor.warmup}"])
counts = st.none() | st.sampled_from([-1, 1, 2, "???"])
rated = st.sampled_from([KL, NATIVE_KL, EPS, EPS_HIGH, CLIP, CLIP_LOW, CLIP_HIGH])
counted = st.sampled_from([STEPS, NATIVE_STEPS])
tiers = st.sampled_from(Tier)


@given(values=st.lists(st.tuples(tiers, rated, rates) | st.tuples(tiers, counted, counts), max_size=6))
def test_shared_sides_agree_and_sharing_is_idempotent(table: Table, values: list[Any]) -> None:
    merged = share_keys(_merged(*values), table)
    tree = merged.resolve_interpolations()
    for row in table:
        core = _at(tree, row.rllm)
        if core is None and row.while_null:
            core = _at(tree, row.while_null)
        if core not in (None, "???"):
            assert _at(tree, row.native) == dict(row.spelled).get(core, core), row
    again = share_keys(merged, table)
    assert (again.tree, again.marks) == (merged.tree, merged.marks)
