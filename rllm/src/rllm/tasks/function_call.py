"""A function of the user's, with one of three signatures, as a reward in the process that it is called in."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

from rllm.tasks.reward_file import load_function, place_of, split
from rllm.tasks.signatures import UnfitError, call_as_trl, call_as_verl, result_of_trl, result_of_verl
from rllm_core.contracts.reward import Rollout, Score


class FunctionCall:
    """Calls the function. Whatever goes wrong is a missing reward that names file and line."""

    def __init__(self, function: str) -> None:
        """Run the file.

        Raises:
            ConfigError: it fails, or its function is missing or has another signature.
        """
        self._path, self._name = split(function)
        self._function, self._parameters = load_function(function)

    async def __call__(self, rollout: Rollout) -> Any:
        """What the function returned, awaited where it is a coroutine."""
        try:
            result = self.called(rollout)
            return self.settled(await result if inspect.isawaitable(result) else result)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (a user's code; what went wrong is the feedback)
            return self.failed(error)

    def called(self, rollout: Rollout) -> Any:
        """What the function returns; awaitable where it is a coroutine function."""
        if self._parameters.style == "trl":
            return call_as_trl(self._function, self._parameters, rollout)
        if self._parameters.style == "verl":
            return call_as_verl(self._function, self._parameters, rollout)
        return self._function(rollout)

    def settled(self, result: Any) -> Any:
        """What the function returned, as a reward returns it."""
        if self._parameters.style == "trl":
            result = result_of_trl(result)
        elif self._parameters.style == "verl":
            result = result_of_verl(result)
        value = result.value if isinstance(result, Score) else result
        value = value.get("value") if isinstance(value, Mapping) else value
        if value is None:
            return result if isinstance(result, Score) and result.feedback else self._missing("it returned None")
        try:
            number = float(value)
        except (TypeError, ValueError):
            return self._missing(f"it returned {value!r:.80}, which is no number")
        return result if math.isfinite(number) else self._missing(f"it returned {number}")

    def _missing(self, why: str) -> Score:
        return Score(value=None, feedback=f"{self._name} in {self._path}: {why}")

    def failed(self, error: BaseException) -> Score:
        """The missing reward of a call that raised."""
        if isinstance(error, UnfitError):
            return self._missing(str(error))
        return Score(value=None, feedback=f"{place_of(error, self._path)}: {type(error).__name__}: {error}")
