"""Values of config keys that plugins use as options."""

from __future__ import annotations

from rllm.config.keys import same_value
from rllm.planning import shared_options
from rllm_core.schema.run_config import RunConfig


def test_shared_options_have_values_of_kind_without_nulls() -> None:
    options = shared_options(RunConfig(), "loss")
    assert options["eps_clip"] == RunConfig().rllm.algorithm.eps_clip
    assert "eps_clip_high" not in options, "it is null"
    assert "min_trajs_per_group" not in options, "it belongs to rejection modes"


def test_same_value_compares_as_yaml() -> None:
    pairs = ((1, 1.0), (None, None), (0, False), (True, 1), ("a", "b"))
    assert [same_value(*pair) for pair in pairs] == [True, True, False, False, False]
