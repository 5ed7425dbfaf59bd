"""The process in a sandbox that runs a program and calls its functions.

It is untrusted, because the program runs in it. It reads JSON lines with a function and arguments from a named pipe,
and writes results to a second pipe as text for `ast.literal_eval`. It uses only the standard library.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

DEEPEST = 100
PLAIN: tuple[Any, ...] = (bool, int, float, complex, str, bytes)
LISTED = ("dict_keys", "dict_values", "dict_items", "range", "deque")
"""Types that are returned as lists, as iterators are."""


def make_plain(value: Any, depth: int = 0) -> Any:
    """Return a value as numbers, text, None, lists, tuples, sets and dicts.

    Raises:
        TypeError: it contains something else.
    """
    if depth > DEEPEST:
        raise TypeError(f"a result with more than {DEEPEST} levels")
    for base in PLAIN:
        if isinstance(value, base):
            return value if type(value) is base else base(value)
    if isinstance(value, dict):
        return {make_plain(key, depth + 1): make_plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        made = [make_plain(each, depth + 1) for each in value]
        return made if isinstance(value, list) else tuple(made) if isinstance(value, tuple) else set(made)
    if hasattr(value, "tolist"):
        return make_plain(value.tolist(), depth + 1)
    if hasattr(value, "__next__") or type(value).__name__ in LISTED:
        return [make_plain(each, depth + 1) for each in value]
    if value is not None:
        raise TypeError(f"a result of type {type(value).__name__}")
    return None


def find_function(namespace: dict[str, Any], name: str) -> Any:
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


def main(directory: str, name: str) -> None:
    """Answer questions until the process is killed. `name` is the start of the names of both pipes."""
    paths = [Path(directory) / f"{name}-{end}" for end in ("questions", "answers")]
    while not all(path.exists() for path in paths):  # The tester makes both.
        time.sleep(0.002)
    source = (Path(directory) / "solution.py").read_text(encoding="utf-8")
    with paths[0].open(encoding="utf-8") as questions, paths[1].open("w", encoding="utf-8") as answers:
        print("ready", file=answers, flush=True)
        with Path(os.devnull).open() as empty, Path(os.devnull).open("w") as unread:
            sys.stdin, sys.stdout = empty, unread
            namespace: dict[str, Any] = {"__name__": "solution"}
            failed = None
            try:
                exec(compile(source, "solution.py", "exec"), namespace)
            except BaseException as error:  # noqa: BLE001  (the program's error is the answer to every question)
                failed = error
            for line in questions:
                question = json.loads(line)
                try:
                    if failed is not None:
                        raise failed
                    arguments = eval(question["arguments"])
                    called = find_function(namespace, question["function"])
                    result = called(*arguments, **eval(question["keywords"]))
                    answer = {"result": repr(make_plain(result)), "arguments": repr(make_plain(arguments))}
                except BaseException as error:  # noqa: BLE001  (the program's error is the answer)
                    answer = {"error": type(error).__name__, "message": str(error)[:200]}
                print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
