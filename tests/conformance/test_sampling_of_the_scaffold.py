"""The engine that `rllm plugins new` writes removes the tokens that transformers removes."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from rllm_core.contracts.engine import SamplingParams

PROBABILITIES = {
    "flat tail": [0.3, 0.2, 0.1, *[0.4 / 37] * 37],
    "ties": [0.1, 0.2, 0.2, 0.2, 0.3],
    "steep": [0.001, 0.009, 0.09, 0.9],
}


@pytest.fixture(scope="module")
def draw() -> Any:
    """The function of the template."""
    template = files("rllm_plugin_kit").joinpath("scaffold/templates/backend/src/MODULE/engine.py.template")
    module: dict[str, Any] = {}
    exec(compile(template.read_text(encoding="utf-8"), "engine.py", "exec"), module)
    return module["draw"]


@pytest.mark.long
@pytest.mark.parametrize("top_p", [0.29, 0.8, 1.0])
@pytest.mark.parametrize("which", PROBABILITIES)
def test_it_draws_from_the_tokens_that_transformers_keeps(which: str, top_p: float, draw: Any) -> None:
    logits = np.log(PROBABILITIES[which])
    for temperature, top_k in ((1.0, -1), (0.5, 2), (1.0, 3), (0.5, 50)):
        processors = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
        if top_k > 0:
            processors.append(TopKLogitsWarper(top_k))
        if top_p < 1:
            processors.append(TopPLogitsWarper(top_p))
        scores = processors(torch.zeros(1, 1, dtype=torch.int64), torch.from_numpy(logits)[None])[0]
        kept = scores[scores > -torch.inf].softmax(-1).sort()[0].numpy()
        sampling = SamplingParams(max_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p)
        # One draw in the middle of each of 4000 equal parts of [0, 1).
        parts = 4000
        drawn = [draw(logits, sampling, _Fixed((part + 0.5) / parts))[0] for part in range(parts)]
        shares = np.sort(np.bincount(drawn)[np.unique(drawn)] / parts)
        # A cut keeps arbitrary ones of equal tokens, so the test compares shares.
        np.testing.assert_allclose(shares, kept[kept > 2 / parts], atol=2 / parts)


class _Fixed:
    """Replaces a generator."""

    def __init__(self, value: float) -> None:
        self._value = value

    def random(self) -> float:
        return self._value
