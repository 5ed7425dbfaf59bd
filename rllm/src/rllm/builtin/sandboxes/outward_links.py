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
    """Remove the links in the agent's directories that lead to the tests, their logs or their processes.

    Raises:
        OSError: a path is too long to be checked. Relative paths of the tests could still reach it.
    """
    root = os.path.realpath(root or "/").rstrip("/")
    closed = (f"{root}/logs", f"{root}/tests", "/logs", "/tests", "/dev", "/proc")
    app, temporary, home = f"{root}/app", f"{root}/tmp", os.environ["HOME"]
    # Tests and programs of the agent share /app and $HOME, but each has its own /tmp, with other links.
    _remove_links((app, home), (*closed, temporary))
    _remove_links((temporary,), (*closed, app, home))


def _remove_links(tops: tuple[str, ...], closed: tuple[str, ...]) -> None:
    """Remove the links below `tops` that lead to some of the places `closed`."""
    opened: list[tuple[str, int]] = []
    directories = list(tops)
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
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            # A program that runs at the same time has removed it, or it is not the agent's.
            sys.stderr.write(f"{error}\n")
    for directory, mode in reversed(opened):
        os.chmod(directory, mode)  # noqa: PTH101


def _open(directory: str, needed: int, opened: list[tuple[str, int]]) -> None:
    """Give this process permissions for a directory, and note the earlier ones, which tests may check."""
    if not os.access(directory, needed):
        opened.append((directory, stat.S_IMODE(os.stat(directory).st_mode)))  # noqa: PTH116
        os.chmod(directory, 0o700)  # noqa: PTH101


def _leads_to(places: tuple[str, ...], directory: str, target: str) -> bool:
    """Return True if a link leads through or to some of `places`, or to a directory that contains one.

    Links on its way are checked too, so only its own words are steps.
    """
    found = "/" if target.startswith("/") else os.path.realpath(directory)
    for word in filter(None, target.split("/")):
        found = os.path.realpath(found) if os.path.islink(found) else found  # noqa: PTH114
        found = os.path.dirname(found) if word == ".." else os.path.normpath(os.path.join(found, word))  # noqa: PTH118, PTH120
        if any(found == place or found.startswith(f"{place}/") for place in places):
            return True
    inside = found.rstrip("/")
    return any(place.startswith(f"{inside}/") for place in places)


if __name__ == "__main__":
    main(*sys.argv[1:])
