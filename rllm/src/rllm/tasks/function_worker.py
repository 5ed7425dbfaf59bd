"""The process that calls a reward function: ``python -m rllm.tasks.function_worker FILE.py:FUNCTION DIGEST PATH``.

It runs the file once and writes ``ready``, or the reason why it cannot. Then it reads lines
``{"rollout": …, "seconds": …}`` and writes one line for each. `DIGEST` is the file's digest at the start of the run:
a process that replaces a killed one must not call a changed function. `PATH` is a JSON list of import directories.

The calling process kills it when an answer takes too long. If the calling process dies, this process ends when its
input ends. If the function never releases the interpreter, a timer ends it: its CPU time is limited to `seconds` times
the number of processors.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import sys
import threading
from typing import TextIO

from rllm_core.errors import ConfigError


def main(function: str, digest: str, path: str) -> None:
    """Call the function for each input line until the input ends."""
    asked, responses = _taken_from_the_function()
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    # Start this thread before running the file, which may never end: then a closed input still ends the process.
    threading.Thread(target=_read, args=(asked, lines), daemon=True).start()
    sys.path[:] = json.loads(path)
    from rllm.tasks.function_call import FunctionCall
    from rllm.tasks.reward_file import compute_digest
    from rllm.tasks.rollout_json import result_to_json, rollout_from_json

    try:
        if compute_digest(function) != digest:
            raise ConfigError(
                "source-changed",
                f"{function} changed during the run.",
                "Undo the change and use --resume, or start a new run with --overwrite.",
            )
        call = FunctionCall(function)
    except ConfigError as error:
        _write(responses, json.dumps({"code": error.code, "message": error.message, "hint": error.hint}))
        return
    _write(responses, "ready")
    while True:
        question = json.loads(lines.get())
        signal.setitimer(signal.ITIMER_PROF, question["seconds"] * (os.cpu_count() or 1) + 1)
        # Each rollout has its own event loop, so that no tasks of one rollout remain when the next one comes.
        result = asyncio.run(call(rollout_from_json(question["rollout"])))
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(responses, result_to_json(result))


def _taken_from_the_function() -> tuple[TextIO, TextIO]:
    """Return this process's pipes, and redirect stdin and stdout so that the function's prints go to the terminal."""
    asked, responses = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return asked, responses


def _read(asked: TextIO, lines: queue.SimpleQueue[str]) -> None:
    for line in asked:
        lines.put(line)
    os._exit(0)


def _write(responses: TextIO, line: str) -> None:
    responses.write(line + "\n")
    responses.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
