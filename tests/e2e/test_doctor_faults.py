"""Faults and a run without a fault, as `benchmarks/doctor.py` causes them by settings of real runs."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from workspace import ROOT

from rllm.builtin.doctor.catalog import RULES
from rllm.builtin.doctor.reading import read_run
from rllm.builtin.doctor.rule import diagnose

STEPS = "rllm.trainer.total_batches=10"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = spec_from_file_location("doctor_benchmark", ROOT / "benchmarks/doctor.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
@pytest.mark.parametrize("name", ["saturated_groups", "truncation", "kl_blowup", "no_temperature", "h_grpo"])
def test_rule_of_fault_is_first_finding(name: str, benchmark: Any, forked_rllm: Any, tmp_path: Path) -> None:
    (setting,) = (each for each in (*benchmark.FAULTS, *benchmark.HEALTHY) if each.name == name)
    benchmark.write_inputs(tmp_path)
    for words in (
        ("sft", "--model", "tiny", "--data", "base.jsonl", *benchmark.BASE),
        ("train", *setting.words, STEPS),
    ):
        done = forked_rllm(*words)
        assert done.returncode == 0, done.stderr
    found = [finding.rule.name for finding in diagnose(read_run(tmp_path / "runs/rllm-training"), RULES).findings]

    assert found[0] in setting.expected if setting.expected else found == []
