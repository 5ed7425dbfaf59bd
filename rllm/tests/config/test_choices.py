"""A key that is read from layers has the same value and origin as after all layers are merged."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, strategies as st

from rllm.config.choices import Reader
from rllm.config.layers import Tier, layer_from_keys
from rllm.config.merge import merge_layers
from rllm.config.packaged import base_layer
from rllm.config.paths import split_key
from rllm.config.resolve import selected_value
from rllm_core.errors import ConfigError
from rllm_core.schema.run_config import RunConfig

READ = ("rllm.env.name", "rllm.algorithm.adv_estimator", "rllm.algorithm.estimator_map")
sections = st.sampled_from(["rllm", "rllm.env", "rllm.algorithm"])
keys = st.sampled_from([*READ, "rllm.env.env_args", "rllm.trainer.project_name", "rllm.algorithm.estimator_map.a"])
values = st.sampled_from(
    [None, "???", "a", 3, {}, {"name": "b"}, {"b": {"x": 1}}, ["a"], "${rllm.trainer.project_name}", "${rllm.env}"]
)
entries = st.tuples(keys, values) | st.tuples(sections, st.sampled_from([None, {}, 3, "???", {"name": "c"}]))


@given(given=st.lists(st.tuples(entries, st.sampled_from(Tier)), max_size=5), key=st.sampled_from(READ))
def test_reader_agrees_with_the_merge(given: list[Any], key: str) -> None:
    layers = [base_layer(), *(layer_from_keys(dict([entry]), f"{tier.name}", tier) for entry, tier in given)]
    try:
        merged = merge_layers(layers, [RunConfig])
        expected = selected_value(merged, key)
    except ConfigError:
        assume(False)
    reader = Reader(layers, [RunConfig])
    assert reader.value(key) == expected
    assert reader.origin(split_key(key)) == merged.origin(split_key(key))
