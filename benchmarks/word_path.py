"""The walk of `--estimator rloo` to the first call of its function: ``python benchmarks/word_path.py`` prints one line.

It follows the name through `rllm train guess`, with a copy of `rloo` whose name occurs nowhere else. A call *receives*
the name if an argument other than `self` is or contains it. The path has these calls and their callers up to `main`,
only in files of `rllm` and `rllm_core`. Other calls do not count, and calls of one function by one caller count once.
A walker reads the path in order: into the file of each call, and back to its caller's file. A *stay* is a part of the
walk in one file, a *room* is a different file, and a *return* is a stay in a file that the walker has left before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
import tempfile
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn

from pydantic import BaseModel

import rllm
import rllm_core
from rllm.cli.main import main as rllm_main
from rllm_core.plugins.registry import Registry

STAYS, ROOMS, RETURNS = 60, 16, 35
NAME = "followed_7f3a"
WORDS = (
    "train",
    "guess",
    "--estimator",
    NAME,
    "data.train_batch_size=2",
    "rllm.rollout.n=2",
    "rllm.trainer.val_before_train=false",
)
ROOTS = tuple(f"{path}/" for module in (rllm_core, rllm) for path in module.__path__)


class ReachedError(BaseException):
    """The walk is over: the estimator's function was called."""


@dataclasses.dataclass
class Call:
    frame: FrameType
    receives: bool
    calls: list[Call] = dataclasses.field(default_factory=list)

    @property
    def file(self) -> str:
        return self.frame.f_code.co_filename

    def is_on_path(self) -> bool:
        return self.receives or any(call.is_on_path() for call in self.calls)

    def walk(self) -> Iterator[str]:
        """Yield the file at each position of the walk."""
        yield self.file
        seen: set[CodeType] = set()
        for call in self.calls:
            if call.frame.f_code not in seen and call.is_on_path():
                seen.add(call.frame.f_code)
                yield from call.walk()
                yield self.file


def contains(value: Any, seen: set[int]) -> bool:
    """Return True if a value is the followed one, or contains it."""
    if isinstance(value, str):
        return NAME in value
    if id(value) in seen:
        return False
    seen.add(id(value))
    if isinstance(value, Mapping):
        return any(contains(item, seen) for item in value.values())
    if isinstance(value, list | tuple):
        return any(contains(item, seen) for item in value)
    if isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return any(contains(item, seen) for item in getattr(value, "__dict__", {}).values())
    return False


def registry_with_copy() -> Registry:
    """Return the installed plugins and a copy of `rloo` with the followed name, whose function ends the walk."""

    def stop(inputs: Any, params: Any) -> NoReturn:
        raise ReachedError

    found = Registry.load()
    plugin = found.get("estimator", "rloo").plugin
    found.add(dataclasses.replace(plugin, name=NAME, load=lambda: stop))
    return found


def walk_of_name() -> list[str]:
    """Return the file at each position of the walk."""
    calls: dict[FrameType, Call] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or frame in calls or not code.co_filename.startswith(ROOTS) or code.co_name[0] == "<":
            return
        caller = frame.f_back
        while caller is not None and caller not in calls:
            caller = caller.f_back
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        names = (name for name in code.co_varnames[:count] if name != "self")
        calls[frame] = Call(frame, any(contains(frame.f_locals.get(name), set()) for name in names))
        if caller is not None:
            calls[caller].calls.append(calls[frame])

    registries = [registry_with_copy() for _ in range(8)]
    Registry.load = lambda *_, **__: registries.pop()  # type: ignore[method-assign]
    run_to_estimator()  # imports everything
    sys.setprofile(note)
    try:
        run_to_estimator()
    finally:
        sys.setprofile(None)
    return list(next(call for call in calls.values() if call.frame.f_code is rllm_main.__code__).walk())


def run_to_estimator() -> None:
    """Run the command until it calls the estimator's function."""
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
        words = [*WORDS, f"rllm.trainer.output_dir={directory}/run"]
        try:
            code = rllm_main(words)
        except ReachedError:
            return
    sys.exit(f"`rllm {' '.join(words)}` ended with {code} before it called the estimator")


def main() -> None:
    stays = [Path(file) for file, _ in groupby(walk_of_name())]
    rooms = len(set(stays))
    print(
        f"{len(stays)} stays (target {STAYS}), {rooms} rooms (target {ROOMS}), "
        f"{len(stays) - rooms} returns (target {RETURNS})"
    )


if __name__ == "__main__":
    main()
