"""Copies of directories as tar archives, for sandboxes that contain ``sh``, ``find`` and ``tar``."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

from rllm_core.contracts.sandbox import Sandbox
from rllm_core.errors import RolloutError

UNPACK = """
if [ -L "$0" ]; then rm "$0"; fi
chmod -R u+rwX "$0" 2>/dev/null
mkdir -p "$0" && find "$0" -mindepth 1 -delete && tar --extract --no-same-owner --file - --directory "$0"
"""
FULL = ("No space left on device", "Wrote only")
"""Messages of tar if the disk is full, or a file is larger than the disk."""
COPY_SECONDS = 600.0


class ArchiveSandbox(Sandbox):
    """A sandbox whose directories are copied by a command in it."""

    async def copy_in(self, source: Path, target: str) -> None:
        packed = await asyncio.to_thread(_packed, source)
        await self._copy(["sh", "-c", UNPACK, target], target, packed)

    async def copy_out(self, source: str, target: Path) -> None:
        packed = await self._copy(["tar", "--create", "--file", "-", "--directory", source, "."], source)
        try:
            await asyncio.to_thread(_unpack, packed, target)
        except (tarfile.TarError, OSError) as error:
            raise RolloutError(
                "copy-failed", f"{source} cannot be copied out of the sandbox: {error}.", "Check the task's tests."
            ) from error

    async def _copy(self, command: Sequence[str], place: str, stdin: bytes = b"") -> bytes:
        result = await self.run(command, seconds=COPY_SECONDS, stdin=stdin)
        if result.exit_code != 0:
            said = result.stderr.decode(errors="replace").strip()
            full = "Make the directory smaller, or set a larger storage_mb in the task's task.toml."
            raise RolloutError(
                "copy-failed",
                f"{place} of the sandbox cannot be copied: {said}",
                full if any(text in said for text in FULL) else "Check the files in the task's directory.",
            )
        return result.stdout


def _packed(source: Path) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.add(source.resolve(), ".")
    return file.getvalue()


def _unpack(packed: bytes, target: Path) -> None:
    """Extract files that the command has made. The filter rejects links and paths that lead out of `target`."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(target, filter="data")
