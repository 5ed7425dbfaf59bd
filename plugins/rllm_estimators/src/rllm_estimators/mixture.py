"""The estimator mix: a weighted sum of other estimators."""

from __future__ import annotations

from typing import Any

import numpy as np

from rllm_core.algorithms.estimation import EstimatorChoice, EstimatorObjects, to_tokens
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.estimator import AdvantageInput, Advantages
from rllm_core.plugins import resolve
from rllm_core.schema.section import Choice
from rllm_estimators.options import MixParams


class Mixture:
    """Sum of weight * advantage over the parts, for each token.

    Use it to combine signals, for example outcomes and lengths, or a critic and groups. The parts' advantages are added
    unchanged, so a part that is not standardized needs a weight that fits its scale. Targets for a critic come from
    the first part that returns them. Parts may keep state.
    """

    def __init__(self) -> None:
        self._objects = EstimatorObjects()
        self._parts: list[EstimatorChoice] = []

    def __call__(self, inputs: AdvantageInput, params: MixParams) -> Advantages:
        if not self._parts:
            self._parts = [_resolve_part(part) for part in params.parts]
        values, returns = np.zeros(len(inputs.loss_mask)), None
        for number, (part, weight) in enumerate(zip(self._parts, params.weights_of_parts, strict=True)):
            who = f"part {number} of mix, estimator {part.plugin.name!r},"
            result = self._objects.function(part, [str(number)])(inputs, part.params)
            values += weight * to_tokens(inputs, result, who, part.plugin.level)
            returns = result.returns if returns is None else returns
        return Advantages(values=values, level="token", returns=returns)

    def state_dict(self) -> dict[str, Any]:
        return self._objects.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._objects.load_state_dict(state)


def _resolve_part(part: Choice) -> EstimatorChoice:
    """Return the part with this qualified name, which the planner has written."""
    options = {"name": part} if isinstance(part, str) else dict(part)
    registered = resolve("estimator", options.pop("name"))
    return PluginChoice(registered=registered, params=registered.plugin.params(**options))
