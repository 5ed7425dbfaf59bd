"""A user's function with one of three signatures as a reward. It is called in this process."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any

from rllm.builtin.tasks.function_file import find_place
from rllm.builtin.tasks.reward_file import load_function, split
from rllm.builtin.tasks.signatures import SignatureError, call_as_trl, call_as_verl, result_of_trl, result_of_verl
from rllm.rows.results import ResultError, score_of
from rllm_core.contracts.reward import Rollout, Score
from rllm_core.errors import describe_function


class FunctionCall:
    """Callable for the function. Any error becomes a missing reward, with the file and line in its feedback."""

    def __init__(self, function: str) -> None:
        """Run the file and load the function.

        Raises:
            ConfigError: the file fails, or the function is missing or has an unknown signature.
        """
        self._path, self._name = split(function)
        self._function, self._parameters = load_function(function)

    def __call__(self, rollout: Rollout) -> Score:
        """Return the function's result as a reward. If it is a coroutine, run it in its own event loop.

        The function itself runs without an event loop, so it can start one.
        """
        try:
            result = self.called(rollout)
            return self.convert_result(asyncio.run(_result_of(result)) if inspect.isawaitable(result) else result)
        except BaseException as error:  # noqa: BLE001  (a user's code; what went wrong is the feedback)
            return self.failed(error)

    def called(self, rollout: Rollout) -> Any:
        """Call the function and return its result. The result is awaitable if it is a coroutine function."""
        if self._parameters.style == "trl":
            return call_as_trl(self._function, self._parameters, rollout)
        if self._parameters.style == "verl":
            return call_as_verl(self._function, self._parameters, rollout)
        return self._function(rollout)

    def convert_result(self, result: Any) -> Score:
        """Convert the function's result to a score.

        Raises:
            SignatureError, ResultError: it is no result of a function with this signature.
        """
        if self._parameters.style == "trl":
            result = result_of_trl(result)
        elif self._parameters.style == "verl":
            result = result_of_verl(result)
        return score_of(result)

    def failed(self, error: BaseException) -> Score:
        """Return a missing reward for a call that raised an exception or returned no reward."""
        if isinstance(error, SignatureError | ResultError):
            return Score(value=None, feedback=f"{describe_function(self._function)} {error}")
        place = find_place(error, self._path)
        return Score(value=None, feedback=f"{self._name} ({place}) raised {type(error).__name__}: {error}")


async def _result_of(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
