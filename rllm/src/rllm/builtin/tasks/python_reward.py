"""`python`: a function in a user's file, called in a process that can be killed."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import weakref
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from rllm.builtin.tasks.function_call import FunctionCall
from rllm.builtin.tasks.reward_file import check_function, compute_digest, is_coroutine
from rllm.builtin.tasks.rollout_json import json_of_rollout
from rllm.builtin.tasks.worker_pool import WorkerPool
from rllm_core.contracts.params import Params
from rllm_core.contracts.reward import Rollout, Score
from rllm_core.errors import ConfigError
from rllm_core.rollout.calls import call
from rllm_serving.line_process import DiedError, LateError, NotReadyError


def _is_in_a_file(function: str) -> str:
    # Accept a file without a function here. Reading the file then reports the functions in it.
    if not function.endswith(".py") and not function.rpartition(":")[0].endswith(".py"):
        raise ValueError("write FILE.py:FUNCTION, such as rewards.py:score")
    return function


class PythonParams(Params):
    """Options of ``python``."""

    function: Annotated[str, AfterValidator(_is_in_a_file)]
    """File and function: rewards.py:score."""
    deadline: float = Field(60.0, gt=0, le=3600)
    """Seconds that a call may take for each of its rollouts before it is killed."""
    processes: int = Field(8, ge=0, le=256)
    """Maximum number of processes that call a plain function. Each starts on demand. 0: use threads of the run, which
    cannot be killed. The run itself awaits coroutine functions."""


def python_reward(params: PythonParams) -> Any:
    """Return the reward. It calls a coroutine function in this process, and a plain function in `processes` others.

    With `processes` 0, plain functions also run in this process. A coroutine function can be stopped here.

    Raises:
        ConfigError: the file or its function cannot be used.
    """
    check_function(params.function)
    if params.processes == 0 or is_coroutine(params.function):
        return InProcess(params)
    return InProcesses(params)


class InProcess:
    """A reward in this process, with a deadline. A thread that is still computing cannot be stopped."""

    def __init__(self, params: PythonParams) -> None:
        self._params = params
        self._call = FunctionCall(params.function)

    async def __call__(self, given: Rollout | Sequence[Rollout]) -> Any:
        if isinstance(given, Rollout):
            return (await self._score([given]))[0]
        if self._call.compares:
            return await self._score(given)
        return await asyncio.gather(*map(self, given))

    async def _score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        limit = asyncio.timeout(self._params.deadline * len(rollouts))
        try:
            async with limit:
                result, convert = await call(self._call.called, rollouts, blocking=True)
                scores: list[Score] = convert(await result if inspect.isawaitable(result) else result)
                return scores
        except (Exception, SystemExit) as error:  # noqa: BLE001  (a user's code; what went wrong is the feedback)
            failure = _late(self._params) if limit.expired() else self._call.failed(error)
            return [failure] * len(rollouts)


class InProcesses:
    """A reward in other processes. A call after the deadline kills its process, and the next call uses a new one."""

    def __init__(self, params: PythonParams) -> None:
        self._params = params
        arguments = (params.function, compute_digest(params.function), json.dumps(sys.path))
        self._pool = WorkerPool("rllm.builtin.tasks.function_worker", params.processes, arguments, stderr=None)
        weakref.finalize(self, self._pool.close)
        try:
            self._pool.start()
        except NotReadyError as error:
            raise ConfigError(**json.loads(error.said)) from error
        except DiedError as error:
            raise ConfigError(
                "process-died",
                f"{params.function}: {error}.",
                "Run the file with Python to see why its process ends: each process runs it once.",
            ) from error
        self._compares: bool = self._pool.ask_line("[]")

    async def __call__(self, given: Rollout | Sequence[Rollout]) -> Any:
        if isinstance(given, Rollout):
            return (await self._score([given]))[0]
        if self._compares:
            return await self._score(given)
        return await asyncio.gather(*map(self, given))

    async def _score(self, rollouts: Sequence[Rollout]) -> Sequence[Any]:
        try:
            question = json.dumps([json_of_rollout(each) for each in rollouts])
        except (TypeError, ValueError) as error:
            why = f"the task cannot be sent to a process, as it is no JSON ({error}); set its option `processes` to 0"
            return [Score(value=None, feedback=why)] * len(rollouts)
        try:
            scores: Sequence[Any] = await call(
                self._pool.ask_line, question, self._params.deadline * len(rollouts), blocking=True
            )
        except LateError:
            return [_late(self._params)] * len(rollouts)
        except DiedError as error:
            return [Score(value=None, feedback=f"{self._params.function}: {error}")] * len(rollouts)
        except NotReadyError as error:
            return [Score(value=None, feedback=json.loads(error.said)["message"])] * len(rollouts)
        return scores


def _late(params: PythonParams) -> Score:
    why = f"{params.function} returned nothing within {params.deadline:g} s; raise its option `deadline`"
    return Score(value=None, feedback=why)
