"""Values of config keys that plugins use as options."""

from __future__ import annotations

from rllm.planning import shared_options
from rllm_core.schema.run_config import RunConfig


def test_shared_options_contain_values_for_one_kind_without_nulls() -> None:
    options = shared_options(RunConfig(), "loss")
    assert options["eps_clip"] == RunConfig().rllm.algorithm.eps_clip
    assert "eps_clip_high" not in options, "it is null"
    assert "min_trajs_per_group" not in options, "it belongs to rejection modes"
