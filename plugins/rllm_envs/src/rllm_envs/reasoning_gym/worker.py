"""The process that generates and scores: ``python -m rllm_envs.reasoning_gym.worker``.

It reads lines of JSON, such as ``{"ask": "question", "source": {…}, "seconds": 60}``, and writes a line for each:
``{"value": …}``, ``{"refused": [message, hint]}`` or ``{"problem": text}``. A system timer kills the process if an
answer takes more than `seconds` of CPU time, because sympy cannot be interrupted in any other way.

The process is separate because generators use the global `random` and numpy's, depend on the order of sets, and print.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from rllm_core.errors import ConfigError


def main() -> None:
    """Answer until the input ends."""
    questions = os.fdopen(os.dup(sys.stdin.fileno()), encoding="utf-8")
    responses = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    # What generated code reads or prints is no question and no response.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, sys.stdin.fileno())
    os.dup2(nothing, sys.stdout.fileno())

    from rllm_envs.reasoning_gym.generators import answered

    responses.write("ready\n")
    responses.flush()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in questions:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, asked["seconds"])
        try:
            response: dict[str, Any] = {"value": answered(asked)}
        except ConfigError as error:
            response = {"refused": [error.code, error.message, error.hint]}
        except Exception as error:  # noqa: BLE001  (generators raise anything; who asked says what)
            response = {"problem": f"{type(error).__name__}: {error}"[:200]}
        signal.setitimer(signal.ITIMER_PROF, 0)
        responses.write(json.dumps(response) + "\n")
        responses.flush()


if __name__ == "__main__":
    main()
