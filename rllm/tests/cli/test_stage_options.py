"""Flags such as `--beta` set an option of their stage, and keep all stages of a custom pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error

from rllm.cli.configuring import plan_for, read_sft_request
from rllm.cli.prefer import read_prefer_request
from rllm.cli.stage_options import check_stage_options
from rllm_core.errors import ConfigError

STAGES = "rllm.pipeline.stages=[preferences,build_batch,{name: rllm/prefer, desirable_weight: 2},update,log,log]"
YAML = "rllm: {pipeline: {stages: [preferences, build_batch, {name: prefer, desirable_weight: 2}, update, log, log]}}"
NAMES = ["preferences", "build_batch", "prefer", "update", "log", "log"]
OPTIONS = {"loss": "kto", "beta": 0.3}


@pytest.mark.parametrize("place", ["file", "override"])
def test_custom_pipeline_keeps_its_stages_and_options(place: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(YAML)
    words, files = ((STAGES,), ()) if place == "override" else ((), (str(file),))
    plan = plan_for(read_prefer_request(words, None, files, {}, OPTIONS))
    assert [stage.registered.name for stage in plan.stages] == NAMES
    assert plan.preferences is not None
    assert plan.preferences.model_dump() == {**OPTIONS, "desirable_weight": 2, "undesirable_weight": 1}


def test_flags_set_options_of_default_stages() -> None:
    plan = plan_for(read_prefer_request((), None, (), {}, {"beta": 0.3}))
    assert plan.preferences is not None
    assert (plan.preferences.loss, plan.preferences.beta) == ("dpo", 0.3)
    of_rows = {"max_length": 9, "long_rows": "drop"}
    requests = (read_sft_request((), None, (), of_rows), read_prefer_request((), None, (), of_rows, {}))
    for examples in (plan_for(request).examples for request in requests):
        assert examples is not None
        assert examples.model_dump() == {**of_rows, "train_on": "assistant"}


@pytest.mark.parametrize(
    "words",
    [("rllm.pipeline.replace={prefer: {name: prefer, beta: 0.5}}",), ("rllm.pipeline.replace={prefer: prefer}",)],
)
def test_flag_is_an_error_if_another_key_replaces_the_stage(words: Any) -> None:
    request = read_prefer_request(words, None, (), {}, {"beta": 0.3})
    with expect_error(ConfigError, "unused-key", "--beta", "0.3", "rllm.pipeline"):
        check_stage_options(plan_for(request), request.stage_options)
