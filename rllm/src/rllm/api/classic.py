"""rLLM's classic estimator signature, and the conversion of such functions to estimators.

``f(rewards, algorithm_config, **kwargs) -> (advantages, returns)``: lists with one array per group, and one number per
trajectory. `rllm.api.as_classic` converts in the opposite direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rllm.api.classic_call import ClassicCall
from rllm_core.contracts.estimator import AdvantageInput, Advantages
from rllm_core.contracts.plugin import NoParams
from rllm_core.errors import AdvantageError, PluginError
from rllm_core.schema.algorithm_sections import AlgorithmSection

PARTS = ("advantages", "returns")


class ClassicEstimator(Protocol):
    """A function in rLLM's classic signature, called once per role with all groups of the role."""

    def __call__(
        self, rewards: list[NDArray[np.float64]], algorithm_config: Any, /, **kwargs: Any
    ) -> tuple[Sequence[ArrayLike], Sequence[ArrayLike]]:
        """Compute advantages and returns of some groups.

        Args:
            rewards: an array per group, (n_traj,) float64 with one reward per trajectory.
            algorithm_config: the run's ``rllm.algorithm``. A function without a positional parameter for it receives it
                as this keyword.
            kwargs: ``traj_groups``, the groups themselves, in the same number and order. If the function accepts it,
                also ``norm_adv_by_std_in_grpo``, the value of ``rllm.algorithm``.

        Returns:
            Two lists like `rewards`, with the same number of arrays of the same shapes.
        """
        ...


@dataclass(frozen=True)
class FromClassic:
    """A classic function as an `AdvantageEstimator` of level ``trajectory`` without options."""

    name: str
    function: ClassicEstimator

    def __call__(self, inputs: AdvantageInput, params: NoParams) -> Advantages:
        """Call the function with copies of the inputs.

        Its returns are checked but not used, because they have one number per trajectory, and a critic learns one per
        token.

        Raises:
            AdvantageError: the function did not return two lists like the rewards.
        """
        # Copies, because functions written for rLLM may centre them in place.
        rewards = [reward.copy() for reward in per_group(inputs.rewards, inputs.group_offsets)]
        config = inputs.algorithm_config
        norm = (config or AlgorithmSection()).norm_adv_by_std_in_grpo
        position, keywords = ClassicCall.from_function(self.function).arguments(config, list(inputs.groups), norm)
        result = self.function(rewards, *position, **keywords)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise AdvantageError(
                "bad-estimator-result",
                f"estimator {self.name!r} returned {result!r:.200}.",
                "Return the pair (advantages, returns).",
            )
        advantages, _ = (self._checked(what, part, inputs) for what, part in zip(PARTS, result, strict=True))
        return Advantages(values=np.concatenate([np.empty(0), *advantages]))

    def _checked(self, what: str, part: Any, inputs: AdvantageInput) -> list[NDArray[np.float64]]:
        """Return one of the two lists as arrays with the shapes of the rewards."""
        if not isinstance(part, list | tuple | np.ndarray):
            raise AdvantageError(
                "bad-estimator-result",
                f"estimator {self.name!r} returned {what} that are {part!r:.200}.",
                "Return a list of arrays.",
            )
        if len(part) != len(inputs.groups):
            raise AdvantageError(
                "bad-estimator-result",
                f"estimator {self.name!r} returned {what} for {len(part)} groups; there are {len(inputs.groups)}.",
                f"Return a list with one array per group: as many {what} as rewards.",
            )
        arrays = []
        sizes = np.diff(inputs.group_offsets)
        for group, size, values in zip(inputs.groups, sizes, part, strict=True):
            try:
                array = np.asarray(values, np.float64)
            except (TypeError, ValueError) as error:
                raise AdvantageError(
                    "bad-estimator-result",
                    f"estimator {self.name!r} returned {what} for group {group.group_id!r} that are not an array of "
                    f"numbers: {error}.",
                    "Return one array of numbers per group.",
                ) from error
            if array.shape != (size,):
                raise AdvantageError(
                    "bad-estimator-result",
                    f"estimator {self.name!r} returned {what} of shape {array.shape} for group {group.group_id!r}, "
                    f"whose rewards have shape ({size},).",
                    "Return one number per trajectory.",
                )
            arrays.append(array)
        return arrays


def per_group(values: NDArray[np.float64], group_offsets: NDArray[np.int64]) -> list[NDArray[np.float64]]:
    """Return values of trajectories, (n_traj,), as a list with one view per group."""
    return [values[start:end] for start, end in pairwise(group_offsets)]


def require_classic(name: str, function: object) -> None:
    """Raise PluginError unless `function` can be called in the classic signature."""
    if not callable(function) or iscoroutinefunction(function):
        what = f"{function!r:.80}" + (", a coroutine function" if callable(function) else "")
        raise PluginError("bad-estimator-signature", f"estimator {name!r} is {what}.", "Register a plain function.")
    try:
        ClassicCall.from_function(function)
    except TypeError as error:
        raise PluginError(
            "bad-estimator-signature",
            f"estimator {name!r} cannot be called as f(rewards, algorithm_config, traj_groups=…): {error}.",
            "Write `def f(rewards, algorithm_config, **kwargs)`, or register an (inputs, params) function with "
            "register_rllm_estimator.",
        ) from error
