"""The process that compares mathematical answers: ``python -m rllm.builtin.tasks.math_worker``.

It reads lines ``{"said": …, "answers": […], "seconds": …}`` and writes one line for each. A timer of the operating
system kills it if a comparison takes longer, because Python cannot interrupt a power of large numbers. If the calling
process dies, this process must not compute forever.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from typing import Any

from rllm.builtin.tasks.math_keys import find_result, write_forms
from rllm_serving.line_worker import answer_lines

LONGEST_EXTRACT = 200


def main() -> None:
    """Answer until the input ends."""
    from math_verify import parse, verify

    logging.disable()  # It warns for every response that its own time limits are off.
    sys.set_int_max_str_digits(0)  # Long numbers are no error; the timer is for those that are too long.
    responses = sys.stdout
    sys.stdout = sys.stderr  # What a library prints is no response.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def answer(question: str) -> str:
        asked = json.loads(question)
        signal.setitimer(signal.ITIMER_REAL, asked["seconds"])
        try:
            response = _compared(parse, verify, asked["said"], asked["answers"])
        except Exception as error:  # noqa: BLE001  (sympy raises anything; the reward says what)
            response = {"problem": f"{type(error).__name__}: {error}"[:200]}
        signal.setitimer(signal.ITIMER_REAL, 0)
        return json.dumps(response)

    answer_lines(answer, sys.stdin, responses)


def _compared(parse: Any, verify: Any, said: str, answers: list[str]) -> dict[str, Any]:
    found = parse(said, parsing_timeout=None)
    # The last entry is the text that the others were read from.
    extracted = str(found[-1]) if found else None
    correct = extracted in {find_result(each) for each in answers}
    if found and not correct:
        right = [parse(form, parsing_timeout=None) for each in answers for form in write_forms(each)]
        correct = any(verify(each, found, timeout_seconds=None) for each in right)
    return {"correct": correct, "extracted": extracted and extracted[:LONGEST_EXTRACT]}


if __name__ == "__main__":
    main()
