"""A user's function with one of four signatures as a reward. It is called in this process."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rllm.builtin.tasks.function_file import find_place
from rllm.builtin.tasks.reward_file import load_function, split
from rllm.builtin.tasks.signatures import COMPARING, SignatureError, TrlCall, call_as_verl, result_of_verl
from rllm.rows.results import ResultError, results_of, score_of
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

    @property
    def compares(self) -> bool:
        """True if the function takes all rollouts of a task. Other functions take one rollout."""
        return self._parameters.style in COMPARING

    def __call__(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """Return the function's results as rewards. If it is a coroutine, run it in its own event loop.

        The function itself runs without an event loop, so it can start one.
        """
        try:
            result, convert = self.called(rollouts)
            return convert(asyncio.run(_result_of(result)) if inspect.isawaitable(result) else result)
        except BaseException as error:  # noqa: BLE001  (a user's code; what went wrong is the feedback)
            return [self.failed(error)] * len(rollouts)

    def called(self, rollouts: Sequence[Rollout]) -> tuple[Any, Callable[[Any], list[Score]]]:
        """Call the function with the rollouts of a task, or with the only one.

        Return its result, which is awaitable if it is a coroutine function, and a function that converts the result to
        scores. The second raises SignatureError or ResultError for a result of the wrong form.
        """
        style = self._parameters.style
        if style == "trl":
            call = TrlCall(rollouts)
            return call.call(self._function, self._parameters), lambda result: [*map(self._read, call.results(result))]
        if style == "group":
            return self._function(rollouts), lambda result: [*map(self._read, results_of(result, len(rollouts)))]
        (rollout,) = rollouts
        if style == "verl":
            result = call_as_verl(self._function, self._parameters, rollout)
            return result, lambda result: [self._read(result_of_verl(result))]
        return self._function(rollout), lambda result: [self._read(result)]

    def _read(self, result: Any) -> Score:
        try:
            return score_of(result)
        except ResultError as error:
            return self.failed(error)

    def failed(self, error: BaseException) -> Score:
        """Return a missing reward for a call that raised an exception or returned no reward."""
        if isinstance(error, SignatureError | ResultError):
            return Score(value=None, feedback=f"{describe_function(self._function)} {error}")
        place = find_place(error, self._path)
        return Score(value=None, feedback=f"{self._name} ({place}) raised {type(error).__name__}: {error}")


async def _result_of(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
