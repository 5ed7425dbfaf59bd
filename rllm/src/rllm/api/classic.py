"""rLLM's classic estimator signature, and conversions from and to it.

``f(rewards, algorithm_config, **kwargs) -> (advantages, returns)``: lists with one array per group, and one number per
trajectory. `ClassicCall` is the form of such a call, `FromClassic` makes an estimator from such a function,
and `AsClassic` makes such a function from an estimator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter, Signature, iscoroutinefunction, signature, unwrap
from itertools import pairwise
from types import CodeType
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rllm_core.algorithms.columns import build_estimator_input
from rllm_core.contracts.estimator import ALWAYS_FILLED, AdvantageEstimator, AdvantageInput, Advantages, EstimatorPlugin
from rllm_core.contracts.params import NoParams
from rllm_core.data.batch import build_batch
from rllm_core.data.types import TrajectoryGroup
from rllm_core.errors import AdvantageError, PluginError
from rllm_core.schema.algorithm_sections import AlgorithmSection

CONFIG, GROUPS = "algorithm_config", "traj_groups"
NORM = "norm_adv_by_std_in_grpo"
"""The only value of ``rllm.algorithm`` that a classic function also receives as a keyword."""


@dataclass(frozen=True)
class ClassicCall:
    """A form of the call. rLLM has two: ``f(rewards, algorithm_config, **kwargs)`` and ``f(rewards, **kwargs)``."""

    config_by_position: bool
    with_norm: bool

    @classmethod
    def from_function(cls, function: Callable[..., Any]) -> ClassicCall:
        """Return the first form that the function's parameters allow.

        Raises:
            TypeError: they allow no form. The message is about ``f(rewards, algorithm_config, traj_groups=…)``.
        """
        try:
            parameters = signature(function)
        except ValueError:
            return cls(config_by_position=True, with_norm=False)  # functions written in C may have no signature
        by_position = (False,) if _second_is_an_option(parameters) else (True, False)
        forms = [cls(position, norm) for position in by_position for norm in (True, False)]
        for form in forms:
            if form._fits(parameters):
                return form
        parameters.bind([], None, traj_groups=[])
        raise TypeError("its second parameter is an option, and it takes no `**kwargs`")

    def arguments(self, config: Any, groups: Any, norm: bool) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the arguments after the rewards: positional arguments and keyword arguments."""
        keywords = {GROUPS: groups} | ({NORM: norm} if self.with_norm else {})
        return ((config,), keywords) if self.config_by_position else ((), {CONFIG: config, **keywords})

    def _fits(self, parameters: Signature) -> bool:
        position, keywords = self.arguments(None, [], True)
        try:
            parameters.bind([], *position, **keywords)
        except TypeError:
            return False
        return True


def reads(function: object, name: str) -> bool:
    """Return True if a function has a parameter of this name, or if its code contains the name (as attribute or
    string)."""
    if not callable(function):
        return False
    try:
        if name in signature(function).parameters:
            return True
    except ValueError:
        return False
    code = getattr(_inmost(function), "__code__", None)
    return isinstance(code, CodeType) and _names(code, name)


def _inmost(function: Callable[..., Any]) -> object:
    """Return the function whose code runs, without decorators and `partial`. For a callable object, return its
    method."""
    function = unwrap(function)
    if isinstance(function, partial):
        return _inmost(function.func)
    return function if hasattr(function, "__code__") else unwrap(type(function).__call__)


def _names(code: CodeType, name: str) -> bool:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    # The keywords of a call are stored as one tuple of names.
    texts = [text for text in code.co_consts if text == name or (isinstance(text, tuple) and name in text)]
    return name in code.co_names or bool(texts) or any(_names(each, name) for each in inner)


def _second_is_an_option(parameters: Signature) -> bool:
    """Return True if the second parameter is an option and not the config, for example ``gamma=0.9`` or the keyword
    `NORM`."""
    second = list(parameters.parameters.values())[1:2]
    return any(
        each.kind is Parameter.POSITIONAL_OR_KEYWORD
        and each.name != CONFIG
        and (each.name == NORM or not (each.default is Parameter.empty or each.default is None))
        for each in second
    )


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
        advantages, _ = (self._check_part(what, part, inputs) for what, part in zip(PARTS, result, strict=True))
        return Advantages(values=np.concatenate([np.empty(0), *advantages]))

    def _check_part(self, what: str, part: Any, inputs: AdvantageInput) -> list[NDArray[np.float64]]:
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


Lists = list[NDArray[np.float64]]
ParamsOf = Callable[[AlgorithmSection | None, Mapping[str, Any]], Any]
"""Converts the run's ``rllm.algorithm`` and keyword options to the estimator's validated options."""


class AsClassic:
    """A callable ``f(rewards, algorithm_config, traj_groups=…, **options) -> (advantages, returns)``.

    The estimator's options come from `options`, then from the keys of `algorithm_config` that a run would share with
    it, then from the defaults.
    """

    def __init__(self, plugin: EstimatorPlugin[Any], estimator: AdvantageEstimator, params_of: ParamsOf) -> None:
        """Check and wrap an estimator.

        Raises:
            PluginError: the estimator returns advantages per step or per token.
        """
        if plugin.level != "trajectory":
            raise PluginError(
                "bad-estimator-signature",
                f"Estimator {plugin.name!r} returns one advantage per {plugin.level}; the classic signature has "
                "one per trajectory.",
                f"Set rllm.algorithm.adv_estimator={plugin.name}, or name an estimator of trajectories.",
            )
        self._plugin = plugin
        self._estimator = estimator
        self._params_of = params_of

    def __repr__(self) -> str:
        return f"<estimator {self._plugin.name!r} in the classic signature>"

    def __call__(
        self,
        rewards: Sequence[ArrayLike],
        algorithm_config: AlgorithmSection | None = None,
        *,
        traj_groups: Sequence[TrajectoryGroup] | None = None,
        norm_adv_by_std_in_grpo: bool | None = None,
        **options: Any,
    ) -> tuple[Lists, Lists]:
        """Estimate advantages.

        Args:
            rewards: an array per group, (n_traj,) with one reward per trajectory.
            traj_groups: the groups, if the estimator uses more than rewards.
            norm_adv_by_std_in_grpo: part of the kwargs of every classic function. An estimator without this option
                ignores it. If None, the value in `algorithm_config` applies.

        Returns:
            Advantages and returns, each a list of arrays with the shapes of `rewards`. Estimators of this level have no
            separate returns, so the returns equal the advantages.

        Raises:
            AdvantageError: `rewards` is not a list of flat arrays or does not fit `traj_groups`, or the estimator needs
                data that these arguments do not contain.
            ConfigError: an option is invalid.
        """
        arrays = [np.array(values, np.float64) for values in rewards]
        for array in arrays:
            if array.ndim != 1:
                raise self._error(f"is given rewards of shape {array.shape}.", "Give one flat array per group.")
        inputs = self._inputs(arrays, algorithm_config, traj_groups)
        for need in sorted(self._plugin.needs - ALWAYS_FILLED):
            if getattr(inputs, need) is None:
                raise self._error(f"needs {need}, which only a run can fill.", "Choose it by name in a run.")
        if norm_adv_by_std_in_grpo is not None and NORM in self._plugin.params.model_fields:
            options[NORM] = norm_adv_by_std_in_grpo
        result = self._estimator(inputs, self._params_of(algorithm_config, options))
        values = np.asarray(result.values, np.float64)
        if values.shape != inputs.rewards.shape:
            raise self._error(f"returned advantages of shape {values.shape} for {len(inputs.rewards)} trajectories.")
        return per_group(values.copy(), inputs.group_offsets), per_group(values.copy(), inputs.group_offsets)

    def _inputs(
        self, arrays: Lists, config: AlgorithmSection | None, groups: Sequence[TrajectoryGroup] | None
    ) -> AdvantageInput:
        sizes = [len(array) for array in arrays]
        together = np.concatenate([np.empty(0), *arrays])
        together.flags.writeable = False
        if groups is None:
            offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
            return cast(AdvantageInput, _RewardsAlone(self._plugin.name, together, offsets, config))
        theirs = [len(group.trajectories) for group in groups]
        if sizes != theirs:
            raise self._error(
                f"is given {len(sizes)} arrays of {sizes} rewards for {len(theirs)} groups of {theirs} trajectories.",
                "Give one reward per trajectory.",
            )
        return replace(
            build_estimator_input(build_batch(groups), np.ones(len(groups), np.bool_), config), rewards=together
        )

    def _error(self, problem: str, hint: str = "") -> AdvantageError:
        return AdvantageError("bad-estimator-signature", f"estimator {self._plugin.name!r} {problem}", hint)


@dataclass(frozen=True)
class _RewardsAlone:
    """An `AdvantageInput` with only rewards and groups. Access to other columns raises an error that names the argument
    to pass."""

    name: str
    rewards: NDArray[np.float64]
    group_offsets: NDArray[np.int64]
    algorithm_config: AlgorithmSection | None

    def __getattr__(self, column: str) -> Any:
        if column not in AdvantageInput.__dataclass_fields__:
            raise AttributeError(column)
        raise AdvantageError(
            "missing-estimator-input",
            f"estimator {self.name!r} reads {column}, and was called with rewards only.",
            "Pass the groups too: traj_groups=…",
        )
