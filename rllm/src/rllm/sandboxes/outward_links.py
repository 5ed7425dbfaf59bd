"""Removes the agent's links that would show tests other files. It needs only Python's standard library, without
pathlib, whose import takes 10 ms.

It runs in a sandbox, with the sandbox's root as its argument. Without it, an agent could link its answer to a file of
the tests, or to the input of the program that compares both.
"""

from __future__ import annotations

import os
import stat
import sys


def main(root: str) -> None:
    """Remove the links in the agent's directories that lead to the tests, their logs or their processes."""
    root = os.path.realpath(root or "/").rstrip("/")
    closed = (f"{root}/logs", f"{root}/tests", "/logs", "/tests", "/dev", "/proc")
    opened: list[tuple[str, int]] = []
    directories = [f"{root}/app", f"{root}/tmp", os.environ["HOME"]]
    while directories:
        directory = directories.pop()
        try:
            _open(directory, os.R_OK | os.X_OK, opened)
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        directories.append(entry.path)
                    elif entry.is_symlink() and _leads_to(closed, directory, os.readlink(entry.path)):  # noqa: PTH115
                        _open(directory, os.W_OK, opened)
                        os.unlink(entry.path)  # noqa: PTH108
        except OSError as error:
            # Tests cannot open such a path either: it is too long, for example.
            sys.stderr.write(f"{error}\n")
    for directory, mode in reversed(opened):
        os.chmod(directory, mode)  # noqa: PTH101


def _open(directory: str, needed: int, opened: list[tuple[str, int]]) -> None:
    """Give this process permissions for a directory, and note the earlier ones, which tests may check."""
    if not os.access(directory, needed):
        opened.append((directory, stat.S_IMODE(os.stat(directory).st_mode)))  # noqa: PTH116
        os.chmod(directory, 0o700)  # noqa: PTH101


def _leads_to(places: tuple[str, ...], directory: str, target: str) -> bool:
    """Return True if the first step of a link is in some of `places`. Later steps are links that are checked too."""
    path = os.path.join(directory, target)  # noqa: PTH118
    parent, name = os.path.split(path)
    found = os.path.realpath(path) if name in ("", ".", "..") else os.path.join(os.path.realpath(parent), name)  # noqa: PTH118
    return any(found == place or found.startswith(f"{place}/") for place in places)


if __name__ == "__main__":
    main(*sys.argv[1:])
