"""The process in a sandbox that runs a test of functions, and prints the reason of a failure.

No code of the program runs in it. It sends the arguments of a call to `in_sandbox_caller`, and reads the result as a
literal. It uses only the standard library.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

LARGEST_ANSWER = 16 << 20
SECONDS_TO_START = 20.0


class Caller:
    """The connection to the process that runs the program."""

    def __init__(self, directory: str, name: str, seconds: float) -> None:
        """Make the pipes, and wait until the other process is ready. It runs the program afterwards.

        Args:
            directory: the program's directory.
            name: start of the names of the pipes.
            seconds: time limit for all calls together.
        """
        self._deadline = time.monotonic() + SECONDS_TO_START
        self._rest = b""
        paths = [Path(directory) / f"{name}-{end}" for end in ("questions", "answers")]
        for path in paths:
            path.unlink(missing_ok=True)
            os.mkfifo(path)
        # For reading and writing, because opening must not wait for the other process. A link is not followed.
        self._questions, self._answers = (os.open(path, os.O_RDWR | os.O_NOFOLLOW) for path in paths)
        if not all(stat.S_ISFIFO(os.fstat(each).st_mode) for each in (self._questions, self._answers)):
            raise RuntimeError("the program replaced a file of the test")
        self._read_line()
        self._deadline = time.monotonic() + seconds

    def call(self, function: str, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
        """Return the result of a function of the program. An error that it raises is raised here.

        Lists, dicts and sets in `arguments` get the contents that the function has left in them.
        """
        question = {"function": function, "arguments": repr(tuple(arguments)), "keywords": repr(keywords)}
        self._write(f"{json.dumps(question)}\n".encode())
        answer = json.loads(self._read_line())
        if "error" in answer:
            kind: Any = getattr(builtins, answer["error"], None)
            is_error = isinstance(kind, type) and issubclass(kind, Exception)
            raise (kind if is_error else RuntimeError)(answer["message"])
        for mine, theirs in zip(arguments, ast.literal_eval(answer["arguments"]), strict=True):
            _replace_contents(mine, theirs)
        return ast.literal_eval(answer["result"])

    def _write(self, data: bytes) -> None:
        os.set_blocking(self._questions, False)
        while data:
            self._wait([], [self._questions])
            data = data[os.write(self._questions, data[:4096]) :]

    def _read_line(self) -> bytes:
        while b"\n" not in self._rest:
            self._wait([self._answers], [])
            self._rest += os.read(self._answers, 1 << 16)
            if len(self._rest) > LARGEST_ANSWER:
                raise RuntimeError("a result is larger than 16 MiB")
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _wait(self, reading: list[int], writing: list[int]) -> None:
        if not any(select.select(reading, writing, [], max(self._deadline - time.monotonic(), 0))):
            raise TimeoutError("not finished in time")


def run_code(caller: Caller, setup: str, code: str) -> None:
    """Run a test's statements. Names that the test does not define are functions of the program."""
    tree = ast.parse(f"{setup}\n{code}")

    def make_proxy(name: str) -> Callable[..., Any]:
        return lambda *arguments, **keywords: caller.call(name, arguments, keywords)

    proxies = {name: make_proxy(name) for name in _find_names(tree)}
    exec(compile(tree, "test", "exec"), {"__name__": "__main__", **proxies})


def run_call(caller: Caller, function: str, arguments: Sequence[Any], expected: Any) -> None:
    """Compare a function's result with the expected JSON value.

    Raises:
        AssertionError: they differ.
    """
    result = _as_json(caller.call(function, arguments, {}))
    # APPS writes some results as a list with one result.
    accepted = [expected, *(expected if isinstance(expected, list) and len(expected) == 1 else [])]
    if not any(result == each and isinstance(result, bool) == isinstance(each, bool) for each in accepted):
        raise AssertionError(f"returned {result!r:.80}, not {expected!r:.80}")


def main() -> None:
    """Run the test of the standard input."""
    test = json.load(sys.stdin)
    verdict = sys.stdout
    failure = ""
    with Path(os.devnull).open("w") as unread:
        sys.stdout = unread
        try:
            caller = Caller(test["directory"], test["name"], test["seconds"])
            if "code" in test:
                run_code(caller, test["setup"], test["code"])
            else:
                run_call(caller, test["function"], test["arguments"], test["result"])
        except AssertionError as error:
            failure = str(error)[:200] or "an assertion fails"
        except BaseException as error:  # noqa: BLE001  (an error of the test or of the program fails the test)
            failure = f"{type(error).__name__}: {str(error)[:200]}"
    json.dump({"failure": failure}, verdict)


def _find_names(tree: ast.AST) -> set[str]:
    """Return the names that a test uses and does not define."""
    names = [each for each in ast.walk(tree) if isinstance(each, ast.Name)]
    known = {each.id for each in names if not isinstance(each.ctx, ast.Load)} | set(dir(builtins))
    for each in ast.walk(tree):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            known.add(each.name)
        elif isinstance(each, ast.arg):
            known.add(each.arg)
        elif isinstance(each, ast.alias):
            known.add((each.asname or each.name).partition(".")[0])
        elif isinstance(each, ast.ExceptHandler) and each.name:
            known.add(each.name)
    return {each.id for each in names} - known


def _replace_contents(mine: Any, theirs: Any) -> None:
    if type(mine) is not type(theirs) or mine == theirs:
        return
    if isinstance(mine, list):
        mine[:] = theirs
    elif isinstance(mine, dict | set):
        mine.clear()
        mine.update(theirs)


def _as_json(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    return {str(key): _as_json(each) for key, each in value.items()} if isinstance(value, dict) else value


if __name__ == "__main__":
    main()
