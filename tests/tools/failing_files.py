"""A directory in fsspec's memory, and a file system whose writes fail."""

from __future__ import annotations

from typing import Any

URL = "memory://bucket/runs/project/run"


class FailingFiles:
    """A file system whose writes fail after the first `allowed` ones. It lists them."""

    def __init__(self, files: Any, allowed: float = float("inf")) -> None:
        self._files, self.allowed = files, allowed
        self.writes: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._files, name)
        if name not in ("put_file", "rm_file", "pipe_file"):
            return found

        def write(*arguments: Any) -> Any:
            if len(self.writes) >= self.allowed:
                raise OSError("the store is away")
            path = arguments[1] if name == "put_file" else arguments[0]
            self.writes.append(f"{name.partition('_')[0]} {path.removeprefix('/bucket/runs/project/run/')}")
            return found(*arguments)

        return write
