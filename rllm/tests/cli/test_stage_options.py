"""Flags such as `--beta` set an option of their stage, and keep all stages of a custom pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error

from rllm.builtin.preferences.command import read_prefer_request
from rllm.builtin.supervised.command import read_sft_request
from rllm.cli.configuring import plan_for
from rllm_core.errors import ConfigError

STAGES = "rllm.pipeline.stages=[preferences,build_batch,{name: rllm/prefer, desirable_weight: 2},update,log,log]"
YAML = "rllm: {pipeline: {stages: [preferences, build_batch, {name: prefer, desirable_weight: 2}, update, log, log]}}"
NAMES = ["preferences", "build_batch", "prefer", "update", "log", "log"]
OPTIONS = {"loss": "kto", "beta": 0.3}


def options_of(plan: Any, stage: str) -> dict[str, Any]:
    return next(each.params.model_dump() for each in plan.stages if each.registered.name == stage)


@pytest.mark.parametrize("place", ["file", "override"])
def test_custom_pipeline_keeps_its_stages_and_options(place: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(YAML)
    words, files = ((STAGES,), ()) if place == "override" else ((), (str(file),))
    plan = plan_for(read_prefer_request(words, None, files, OPTIONS))
    assert [stage.registered.name for stage in plan.stages] == NAMES
    assert options_of(plan, "prefer") == {**OPTIONS, "desirable_weight": 2, "undesirable_weight": 1}


def test_flags_set_options_of_default_stages() -> None:
    of_rows = {"max_length": 9, "long_rows": "drop"}
    preferring = plan_for(read_prefer_request((), None, (), {"beta": 0.3, **of_rows}))
    imitating = plan_for(read_sft_request((), None, (), of_rows))
    found = options_of(preferring, "prefer")
    assert (found["loss"], found["beta"]) == ("dpo", 0.3)
    for plan, stage in ((preferring, "preferences"), (imitating, "examples")):
        assert options_of(plan, stage) == {**of_rows, "train_on": "assistant"}


def test_options_win_over_a_replaced_stage() -> None:
    words = ("rllm.pipeline.replace={prefer: {name: prefer, beta: 0.5}}",)
    assert options_of(plan_for(read_prefer_request(words, None, (), {"beta": 0.3})), "prefer")["beta"] == 0.3


def test_option_of_a_missing_stage_is_an_error() -> None:
    words = ("rllm.pipeline.options.prefer.beta=0.3",)
    with expect_error(ConfigError, "unknown-stage", "rllm.pipeline.options.prefer"):
        plan_for(read_sft_request(words, None, (), {}))
