"""Options of plugins that are written as keys are answered with where they belong."""

from __future__ import annotations

import pytest

from rllm.config.compose import compose
from rllm.config.layers import layers_from_overrides
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry


@pytest.mark.parametrize(
    ("word", "told"),
    [
        (
            "rllm.algorithm.clip_ratio_c=3",
            "`clip_ratio_c` is an option of loss ppo: write rllm.algorithm.loss_fn='{name: ppo, clip_ratio_c: 3}'.",
        ),
        (
            "rllm.algorithm.dialect=verl",
            "`dialect` is an option of estimator grpo, reinforce_plus_plus_baseline, rloo: write "
            "rllm.algorithm.adv_estimator='{name: grpo, dialect: \"verl\"}'.",
        ),
        ("rllm.algorithm.nonsense=1", ""),
        ("rllm.trainer.dialect=verl", ""),
    ],
)
def test_the_choice_that_takes_it_is_named(word: str, told: str) -> None:
    registry = Registry.load(allow=["rllm-local"], environ={})

    with pytest.raises(ConfigError, match="is not a key of rllm") as caught:
        compose(registry, layers_from_overrides(["rllm.backend=local", word]))

    assert caught.value.hint == told
