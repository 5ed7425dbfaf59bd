"""What a run needs and is not installed is said in one error, with one line of pip."""

from __future__ import annotations

import pytest
from expecting import check_error

from rllm.config import missing_packages
from rllm.config.compose import compose
from rllm.config.layers import layers_from_overrides
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry


def _refusal(registry: Registry, *words: str) -> ConfigError:
    with pytest.raises(ConfigError) as raised:
        compose(registry, layers_from_overrides(list(words)))
    return raised.value


@pytest.fixture
def core_alone(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The registry of a machine with rllm-core and rllm only."""
    monkeypatch.setattr(missing_packages, "find_installed", lambda name: None)
    return Registry.load(environ={"RLLM_BLOCK_PLUGINS": "*"})


@pytest.mark.parametrize(
    ("words", "what", "line"),
    [
        (["rllm.env.name=sum"], "rllm-local for backend 'local'", "rllm-local"),
        (
            ["rllm.env.name=sum", "rllm.backend=tinker", "tinker_base_url=local", "rllm.algorithm.loss_fn={name: dro}"],
            "rllm-tinker for backend 'tinker'; rllm-estimators for loss 'dro'",
            "'rllm-tinker[local]' rllm-estimators",
        ),
        (
            ["rllm.backend=verl", "rllm.profile=cpu", "rllm.rollout.engine=vllm", "rllm.workflow.name=solver_judge"],
            "rllm-verl for backend 'verl'; rllm-vllm for engine 'vllm'",
            "'rllm-verl[cpu]' 'rllm-vllm[gpu]' (without a GPU 'rllm-vllm[cpu]')",
        ),
        (
            ["rllm.algorithm.estimator_map={a: opo, b: {name: gae, loss_fn: sapo}}", "data.train_dataset={name: hf}"],
            "rllm-local for backend 'local'; rllm-estimators for estimator 'opo'; rllm-data for dataset 'hf'",
            "rllm-local rllm-estimators rllm-data",
        ),
        (
            ["rllm.env.name=reasoning_gym:chain_sum"],
            "rllm-local for backend 'local'; rllm-envs for environment 'reasoning_gym:chain_sum'",
            "rllm-local 'rllm-envs[reasoning-gym]'",
        ),
    ],
)
def test_all_missing_distributions_are_named_at_once(
    core_alone: Registry, words: list[str], what: str, line: str
) -> None:
    error = _refusal(core_alone, *words)

    check_error(error, "missing-package", what, line)


def test_unknown_plugin_name_is_left_to_the_lookup(core_alone: Registry) -> None:
    error = _refusal(core_alone, "rllm.env.name=nowhere", "rllm.backend=unheard_of")

    check_error(error, "unknown-plugin", "'unheard_of'")
