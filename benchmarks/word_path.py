"""The path of an override from the command line to the plan: ``python benchmarks/word_path.py [FILE]`` prints one line.

It follows one value through the calls into files of ``rllm_core`` and ``rllm`` that receive it, at any depth of an
argument. Several calls in a loop of one function count once. A call that only reads an attribute of an object with the
value (``composed.origin(key)``) does not count. A *stay* is a run of such calls in one file. A *return* is a stay in a
file that was left before. FILE is a configuration below the override, such as the ``config.yaml`` of a run.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from pydantic import BaseModel

import rllm
import rllm_core
from rllm.cli.configuring import plan_for, read_request

TARGET = 30
VALUE = "followed-7f3a"
WORD = f"rllm.trainer.experiment_name={VALUE}"
ROOTS = tuple(str(path) for module in (rllm_core, rllm) for path in module.__path__)


def contains(value: Any, seen: set[int]) -> bool:
    """Return True if a value is the followed one, or contains it."""
    if isinstance(value, str):
        return VALUE in value
    if id(value) in seen:
        return False
    seen.add(id(value))
    if isinstance(value, Mapping):
        return any(contains(item, seen) for item in value.values())
    if isinstance(value, list | tuple):
        return any(contains(item, seen) for item in value)
    if isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return any(contains(item, seen) for item in vars(value).values())
    return False


def path_of_word(files: tuple[str, ...]) -> list[str]:
    """Return the file of every call that received the value, in order."""
    visited: list[str] = []
    seen: set[tuple[FrameType, CodeType]] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(ROOTS) or code.co_name.startswith("<"):
            return
        caller = frame.f_back
        while caller is not None and caller.f_code.co_name.startswith("<"):
            caller = caller.f_back
        if caller is None or (caller, code) in seen:
            return
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(contains(frame.f_locals.get(name), set()) for name in arguments if name != "self"):
            seen.add((caller, code))
            visited.append(_name(code.co_filename))

    words = (WORD,) if files else ("guess", WORD)
    plan_for(read_request(words, None, files, {}))  # imports everything
    sys.setprofile(note)
    try:
        plan_for(read_request(words, None, files, {}))
    finally:
        sys.setprofile(None)
    return visited


def _name(file: str) -> str:
    """Return the path of a source file in its package: ``rllm/config/merge.py``."""
    root = next(Path(root) for root in ROOTS if file.startswith(root))
    return str(Path(file).relative_to(root.parent))


def main() -> None:
    visited = path_of_word(tuple(sys.argv[1:2]))
    stays = [name for name, _ in groupby(visited)]
    returns = len(stays) - len(set(stays))
    print(
        f"{len(visited)} calls, {len(stays)} stays in {len(set(stays))} files, {returns} returns (target {TARGET}); "
        f"{' '.join(stays)}"
    )


if __name__ == "__main__":
    main()
