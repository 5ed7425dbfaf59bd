"""The process that matches regular expressions: ``python -m rllm.builtin.tasks.regex_worker``.

It reads lines ``{"pattern": …, "text": …, "whole": …, "seconds": …}`` and writes a line for each. A match that takes
longer ends the process by a timer of the system: Python cannot interrupt a match, which holds the interpreter's lock.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from typing import Any

from rllm_serving.line_worker import answer_lines


def main() -> None:
    """Answer until the input ends."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    answer_lines(_answer, sys.stdin, sys.stdout)


def _answer(question: str) -> str:
    asked = json.loads(question)
    signal.setitimer(signal.ITIMER_REAL, asked["seconds"])
    found = _match_pattern(asked)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return json.dumps(found)


def _match_pattern(asked: Any) -> Any:
    """Match the whole text and return a bool, or search and return the first group of the last match that has it."""
    if asked["whole"]:
        return re.fullmatch(asked["pattern"], asked["text"], re.DOTALL) is not None
    found = [match[1] for match in re.finditer(asked["pattern"], asked["text"]) if match[1] is not None]
    return found[-1] if found else None


if __name__ == "__main__":
    main()
