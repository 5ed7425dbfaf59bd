"""Copies of directories into sandboxes as tar archives, for sandboxes that contain ``sh``, ``find`` and ``tar``."""

from __future__ import annotations

import asyncio
import io
import tarfile
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
    """A sandbox into which a command copies directories."""

    async def copy_in(self, source: Path, target: str) -> None:
        packed = await asyncio.to_thread(_packed, source)
        result = await self.run(["sh", "-c", UNPACK, target], seconds=COPY_SECONDS, stdin=packed)
        if result.exit_code != 0:
            said = result.stderr.decode(errors="replace").strip()
            full = "Make the directory smaller, or set a larger storage_mb in the task's task.toml."
            raise RolloutError(
                "copy-failed",
                f"{target} of the sandbox cannot be replaced: {said}",
                full if any(text in said for text in FULL) else "Check the files in the task's directory.",
            )


def _packed(source: Path) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.add(source.resolve(), ".")
    return file.getvalue()
