"""Checks of vLLM on a CPU before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError
from rllm_verl.vllm_on_cpu import check_vllm_on_cpu

MODEL = "actor_rollout_ref.model.path"
VLLM = {"actor_rollout_ref.rollout.name": "vllm"}


@pytest.mark.parametrize(
    ("profile", "values", "said"),
    [
        ("cpu", VLLM | {MODEL: "someone/model"}, "--profile cpu_vllm"),
        ("cpu_vllm", {MODEL: "tiny"}, "`tiny` has size 16"),
    ],
)
def test_runs_that_vllm_cannot_serve_are_refused(change: Any, profile: str, values: Any, said: str) -> None:
    with expect_error(ConfigError, "not-for-cpu", said):
        check_vllm_on_cpu(change(profile, values).native())


@pytest.mark.parametrize(("profile", "model"), [("cpu_vllm", "someone/model"), (None, "tiny"), ("cpu", "tiny")])
def test_other_runs_pass(change: Any, profile: str | None, model: str) -> None:
    check_vllm_on_cpu(change(profile, {MODEL: model}).native())
