"""The process that calls a reward function: ``python -m rllm.tasks.function_worker FILE.py:FUNCTION DIGEST PATH``.

It runs the file once and writes ``ready``, or why it cannot. Then it reads lines ``{"rollout": …, "seconds": …}`` and
writes a line for each. `DIGEST` is that of the file when the run began: a process that takes the
place of a killed one must not call another function. `PATH` is the JSON list of folders that modules come from.

Whoever asks kills it when an answer takes too long. A process that was left behind ends by itself: with its input, or,
where the function never lets go of the interpreter, when it has used more time than all processors have in `seconds`.
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
    """Answer until the input ends."""
    asked, responses = _taken_from_the_function()
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    # Before the file is run, which may take for ever: nobody may be there to wait for it any more.
    threading.Thread(target=_read, args=(asked, lines), daemon=True).start()
    sys.path[:] = json.loads(path)
    from rllm.tasks.function_call import FunctionCall
    from rllm.tasks.reward_file import digest_of
    from rllm.tasks.rollout_json import json_of, rollout_of

    try:
        if digest_of(function) != digest:
            raise ConfigError(
                "source-changed",
                f"{function} changed while the run went on.",
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
        # Each on a loop of its own: nothing of one attempt is left when the next comes.
        result = asyncio.run(call(rollout_of(question["rollout"])))
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(responses, json_of(result))


def _taken_from_the_function() -> tuple[TextIO, TextIO]:
    """The pipes of this process. A function that prints writes to the terminal, one that reads gets nothing."""
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
