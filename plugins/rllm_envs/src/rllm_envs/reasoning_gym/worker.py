"""The process that generates and scores: ``python -m rllm_envs.reasoning_gym.worker``.

It reads lines of JSON, such as ``{"ask": "question", "source": {…}, "seconds": 60}``, and writes a line for each:
``{"value": …}``, ``{"refused": [message, hint]}`` or ``{"problem": text}``. A system timer kills the process if an
answer takes more than `seconds` of CPU time, because sympy cannot be interrupted in any other way.

The process is separate because generators use the global `random` and numpy's, depend on the order of sets, and print.
"""

from __future__ import annotations

import json
import signal
from typing import Any

from rllm_core.errors import ConfigError
from rllm_serving.line_worker import answer_lines, take_pipes


def main() -> None:
    """Answer until the input ends."""
    asked, responses = take_pipes()

    from rllm_envs.reasoning_gym.generators import answer_question

    def answer(line: str) -> str:
        question = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, question["seconds"])
        try:
            response: dict[str, Any] = {"value": answer_question(question)}
        except ConfigError as error:
            response = {"refused": [error.code, error.message, error.hint]}
        except Exception as error:  # noqa: BLE001  (generators raise anything; who asked says what)
            response = {"problem": f"{type(error).__name__}: {error}"[:200]}
        signal.setitimer(signal.ITIMER_PROF, 0)
        return json.dumps(response)

    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    answer_lines(answer, asked, responses)


if __name__ == "__main__":
    main()
