"""Options of plugins that are written as keys are answered with where they belong."""

from __future__ import annotations

import pytest
from expecting import expect_error

from rllm.config.compose import compose
from rllm.config.layers import layers_from_overrides
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry


@pytest.mark.parametrize(
    ("word", "told"),
    [
        (
            "rllm.algorithm.clip_ratio_c=3",
            ("unknown-key", "`clip_ratio_c`", "rllm.algorithm.loss_fn=", "'{name: ppo, clip_ratio_c: 3}'"),
        ),
        (
            "rllm.algorithm.dialect=verl",
            (
                "unknown-key",
                "`dialect`",
                "reinforce_plus_plus_baseline",
                "rllm.algorithm.adv_estimator=",
                "'{name: grpo, dialect: \"verl\"}'",
            ),
        ),
        ("rllm.algorithm.nonsense=1", ("unknown-key",)),
        ("rllm.trainer.dialect=verl", ("unknown-key",)),
    ],
)
def test_the_choice_that_takes_it_is_named(word: str, told: tuple[str, ...]) -> None:
    registry = Registry.load(allow=["rllm-local"], environ={})

    with expect_error(ConfigError, *told):
        compose(registry, layers_from_overrides(["rllm.backend=local", word]))
