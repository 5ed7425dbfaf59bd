"""Answer the lines of a `LineProcess`, in its process."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Callable
from typing import TextIO

from rllm_serving.line_process import READY

PRIVATE_DESCRIPTOR = 200
"""Smallest file descriptor of the private pipes. User code that closes all small ones does not close them."""
OWNER = os.getpid()


def answer_lines(answer: Callable[[str], str], questions: TextIO, responses: TextIO) -> None:
    """Report that the process is ready, and answer each line until the input ends."""
    write_line(responses, READY)
    for line in questions:
        number, _, question = line.partition(" ")
        write_line(responses, f"{number} {answer(question)}")


def write_line(responses: TextIO, line: str) -> None:
    """Write a line immediately. If user code has forked this process, the child ends instead."""
    if os.getpid() != OWNER:
        os._exit(0)
    responses.write(line + "\n")
    responses.flush()


def take_pipes() -> tuple[TextIO, TextIO]:
    """Return the pipes to the calling process. Replace stdin by nothing, and stdout by stderr, so prints stay out."""
    smallest = min(PRIVATE_DESCRIPTOR, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    questions, responses = (fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, smallest) for each in (0, 1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(questions, encoding="utf-8"), os.fdopen(responses, "w", encoding="utf-8")
