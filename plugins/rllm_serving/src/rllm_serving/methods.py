"""Calls of an object's methods in another process: `answer_call` in that process, `result_of` in the caller's process.

A request is `(name, *arguments)`, and an answer is `(value, error, traceback)`, both in the encoding `PICKLE`.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from typing import Any

from rllm_serving.connection import PICKLE


def answer_call(target: object, request: bytes) -> bytes:
    """Call a method of `target`, and return the encoded answer: a value, or an error with its traceback."""
    try:
        name, *arguments = PICKLE.load(request)
        answer = PICKLE.dump((getattr(target, name)(*arguments), None, ""))
    except Exception as error:  # noqa: BLE001  (the other process raises it)
        answer = PICKLE.dump((None, _portable(error), traceback.format_exc()))
    # The other process reads the log when it has the answer.
    sys.stdout.flush()
    sys.stderr.flush()
    return answer


def result_of(answer: tuple[Any, Exception | None, str], where: str) -> Any:
    """Return an answer's value, or raise its error with a note about the process, which is called `where`."""
    value, error, trace = answer
    if error is not None:
        error.add_note(f"In {where}:\n{trace}")
        raise error
    return value


def _portable(error: Exception) -> Exception:
    """Return the error if it can be pickled, otherwise a RuntimeError with its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  (the error's class can come from any package)
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
