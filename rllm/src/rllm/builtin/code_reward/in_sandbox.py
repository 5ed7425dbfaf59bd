"""The two processes in a sandbox that run a test of functions.

The caller runs the program and calls its functions, so it is untrusted. The tester runs the test, and prints the reason
of a failure. No code of the program runs in the tester. It sends the arguments of a call through a named pipe, and
receives the result through a second pipe. Both are JSON, which contains plain values only. This file needs only the
standard library, because it runs in images without rllm.
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
from types import ModuleType
from typing import Any

LARGEST_ANSWER = 32 << 20
LARGEST_INTEGER = 100_000
"""Maximum number of digits of an integer. Python's own limit is 4,300."""
SECONDS_TO_START = 20.0
DEEPEST = 200
ATOMS: tuple[type, ...] = (bool, int, float, str)
COLLECTIONS: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
LISTED = ("dict_keys", "dict_values", "dict_items", "range", "deque")
"""Types that are returned as lists, as iterators are."""
PROGRAM = "solution"
"""The name of the program's module. Tests may import it."""


def encode(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON. Values without a JSON type are ``{type: contents}``.

    Raises:
        TypeError: it contains something other than numbers, text, None, lists, tuples, sets and dicts.
    """
    if depth > DEEPEST:
        raise TypeError(f"a value with more than {DEEPEST} levels")
    if value is None or type(value) in ATOMS or (type(value) is list and set(map(type, value)) <= {*ATOMS}):
        return value
    for base in ATOMS:
        if isinstance(value, base):
            return base(value)
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, dict):
        return {"dict": [[encode(key, depth + 1), encode(each, depth + 1)] for key, each in value.items()]}
    for name in COLLECTIONS:
        if isinstance(value, getattr(builtins, name)):
            return {name: [encode(each, depth + 1) for each in value]}
    if hasattr(value, "tolist"):
        return encode(value.tolist(), depth + 1)
    if isinstance(value, list) or hasattr(value, "__next__") or type(value).__name__ in LISTED:
        return [encode(each, depth + 1) for each in value]
    raise TypeError(f"a value of type {type(value).__name__}")


def decode(value: Any) -> Any:
    """Return the value that `encode` has written."""
    if isinstance(value, list):
        return [decode(each) for each in value] if {list, dict} & set(map(type, value)) else value
    if not isinstance(value, dict):
        return value
    ((kind, contents),) = value.items()
    if kind == "complex":
        return complex(*contents)
    if kind == "bytes":
        return bytes.fromhex(contents)
    if kind == "dict":
        return {decode(key): decode(each) for key, each in contents}
    return COLLECTIONS[kind](map(decode, contents))


class Caller:
    """The tester's connection to the process that runs the program."""

    def __init__(self, directory: str, name: str, seconds: float) -> None:
        """Make the pipes, and wait until the other process is ready. It runs the program afterwards.

        Args:
            directory: the program's directory.
            name: start of the names of the pipes.
            seconds: time limit for all calls together.
        """
        self._deadline = time.monotonic() + SECONDS_TO_START
        self._rest = b""
        paths = _pipes(directory, name)
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
        question = {"function": function, "arguments": encode(list(arguments)), "keywords": encode(keywords)}
        self._write(f"{json.dumps(question)}\n".encode())
        answer = json.loads(self._read_line())
        if "error" in answer:
            kind: Any = getattr(builtins, answer["error"], None)
            is_error = isinstance(kind, type) and issubclass(kind, Exception)
            raise (kind if is_error else RuntimeError)(answer["message"])
        for mine, theirs in zip(arguments, decode(answer["arguments"]), strict=True):
            _replace_contents(mine, theirs)
        return decode(answer["result"])

    def _write(self, data: bytes) -> None:
        os.set_blocking(self._questions, False)
        rest = memoryview(data)
        while rest:
            self._wait([], [self._questions])
            rest = rest[os.write(self._questions, rest[: 1 << 16]) :]

    def _read_line(self) -> bytes:
        line = bytearray(self._rest)
        end = line.find(b"\n")
        while end < 0:
            self._wait([self._answers], [])
            checked = len(line)
            line += os.read(self._answers, 1 << 16)
            if len(line) > LARGEST_ANSWER:
                raise RuntimeError(f"a result is larger than {LARGEST_ANSWER >> 20} MiB")
            end = line.find(b"\n", checked)
        self._rest = bytes(line[end + 1 :])
        return bytes(line[:end])

    def _wait(self, reading: list[int], writing: list[int]) -> None:
        if not any(select.select(reading, writing, [], max(self._deadline - time.monotonic(), 0))):
            raise TimeoutError("not finished in time")


def find_functions(tree: ast.AST, defined: set[str]) -> set[str]:
    """Return the names in a test that belong to the program: the names that the test uses and does not define.

    A builtin belongs to the program only if the program defines it and the test uses no other name of the program.
    Otherwise a program could change the meaning of a test with its own ``set`` or ``abs``.
    """
    names = [each for each in ast.walk(tree) if isinstance(each, ast.Name)]
    known = {each.id for each in names if not isinstance(each.ctx, ast.Load)}
    imported: set[str] = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            known.add(each.name)
        elif isinstance(each, ast.arg):
            known.add(each.arg)
        elif isinstance(each, ast.alias):
            known.add((each.asname or each.name).partition(".")[0])
            imported |= {each.name} & {PROGRAM}
        elif isinstance(each, ast.ExceptHandler) and each.name:
            known.add(each.name)
        if isinstance(each, ast.ImportFrom) and each.module == PROGRAM:
            imported |= {alias.name for alias in each.names}
    used = {each.id for each in names} - known
    return (used - set(dir(builtins))) | imported or used & defined


def run_code(caller: Caller, setup: str, code: str, defined: set[str]) -> None:
    """Run a test's statements. `defined` are the names that the program defines."""
    tree = ast.parse(f"{setup}\n{code}")

    def make_proxy(name: str) -> Callable[..., Any]:
        return lambda *arguments, **keywords: caller.call(name, arguments, keywords)

    def make_attribute(name: str) -> Callable[..., Any]:
        if name.startswith("__"):  # For example `__path__`, which `import` reads.
            raise AttributeError(name)
        return make_proxy(name)

    sys.modules[PROGRAM] = ModuleType(PROGRAM)
    # `from solution import *` adds no names, because the names that a test needs are there already.
    vars(sys.modules[PROGRAM]).update(__getattr__=make_attribute, __all__=[])
    proxies = {name: make_proxy(name) for name in find_functions(tree, defined)}
    exec(compile(tree, "test", "exec"), {"__name__": "__main__", **proxies})


def run_call(caller: Caller, function: str, arguments: Sequence[Any], accepted: Sequence[Any]) -> None:
    """Compare a function's result with the accepted JSON values.

    Raises:
        AssertionError: it equals none of them.
    """
    result = caller.call(function, arguments, {})
    if _as_json(result) not in [_as_json(each) for each in accepted]:
        raise AssertionError(f"returned {result!r:.80}, not {accepted[0]!r:.80}")


def run_tester() -> None:
    """Run the test of the standard input."""
    test = json.load(sys.stdin)
    verdict = sys.stdout
    failure = ""
    with Path(os.devnull).open("w") as unread:
        sys.stdout = unread
        try:
            caller = Caller(test["directory"], test["name"], test["seconds"])
            if "code" in test:
                run_code(caller, test["setup"], test["code"], set(test["defined"]))
            else:
                run_call(caller, test["function"], test["arguments"], [test["result"], *test["also"]])
        except AssertionError as error:
            failure = str(error)[:200] or "an assertion fails"
        except BaseException as error:  # noqa: BLE001  (an error of the test or of the program fails the test)
            failure = f"{type(error).__name__}: {str(error)[:200]}"
    json.dump({"failure": failure}, verdict)


def run_caller(directory: str, name: str) -> None:
    """Answer the tester's questions until the process is killed. `name` is the start of the names of both pipes."""
    paths = _pipes(directory, name)
    while not all(path.exists() for path in paths):  # The tester makes both.
        time.sleep(0.002)
    file = Path(directory) / f"{PROGRAM}.py"
    source = file.read_text(encoding="utf-8")
    with paths[0].open(encoding="utf-8") as questions, paths[1].open("w", encoding="utf-8") as answers:
        print("ready", file=answers, flush=True)
        with Path(os.devnull).open() as empty, Path(os.devnull).open("w") as unread:
            sys.stdin, sys.stdout = empty, unread
            # In sys.modules, because dataclasses and pickle search the module of a class there.
            program = sys.modules[PROGRAM] = ModuleType(PROGRAM)
            program.__file__ = str(file)
            failed = None
            try:
                # With this file's `annotations`, because LeetCode's programs use List without an import.
                exec(compile(source, str(file), "exec"), vars(program))
            except BaseException as error:  # noqa: BLE001  (the program's error is the answer to every question)
                failed = error
            for line in questions:
                question = json.loads(line)
                try:
                    if failed is not None:
                        raise failed
                    arguments = decode(question["arguments"])
                    called = _find_function(vars(program), question["function"])
                    result = called(*arguments, **decode(question["keywords"]))
                    answer = {"result": encode(result), "arguments": encode(arguments)}
                except BaseException as error:  # noqa: BLE001  (the program's error is the answer)
                    answer = {"error": type(error).__name__, "message": str(error)[:200]}
                print(json.dumps(answer), file=answers, flush=True)


def _pipes(directory: str, name: str) -> list[Path]:
    return [Path(directory) / f"{name}-{end}" for end in ("questions", "answers")]


def _find_function(namespace: dict[str, Any], name: str) -> Any:
    """Return a function of the program, or a method of its class ``Solution``.

    Raises:
        NameError: there is none.
    """
    if name in namespace:
        return namespace[name]
    solution = namespace.get("Solution")
    if solution is None or not hasattr(solution, name):
        raise NameError(f"the program defines no {name}")
    return getattr(solution(), name)


def _replace_contents(mine: Any, theirs: Any) -> None:
    if type(mine) is not type(theirs) or mine == theirs:
        return
    if isinstance(mine, list):
        mine[:] = theirs
    elif isinstance(mine, dict | set):
        mine.clear()
        mine.update(theirs)


def _as_json(value: Any) -> Any:
    """Return a value in a form that `==` compares as JSON: tuples are lists, and True is not 1."""
    if isinstance(value, bool):
        return (value,)
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    return {str(key): _as_json(each) for key, each in value.items()} if isinstance(value, dict) else value


if __name__ == "__main__":
    sys.set_int_max_str_digits(LARGEST_INTEGER)
    run_caller(*sys.argv[1:]) if sys.argv[1:] else run_tester()
