"""Checkpoints: written to a temporary directory, synced, renamed, verified by digest. A crash spares older ones."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rllm_core.errors import CheckpointError, RllmError
from rllm_core.files import sha256, sync_directory, sync_file
from rllm_record.run_files import BACKEND, LATEST_CHECKPOINT, MANIFEST

STATE = "state.json"
FORMAT_VERSION = 3


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint."""

    directory: Path
    state: dict[str, Any]
    """The trainer's state, as given to `CheckpointStore.save`."""

    @property
    def backend_directory(self) -> Path:
        return self.directory / BACKEND


class CheckpointStore:
    """The checkpoints of one run, ``step_000020`` and so on, and a link ``latest`` to the newest."""

    def __init__(self, directory: Path, keep: int) -> None:
        self._directory = directory
        self._keep = keep

    async def save(
        self,
        step: int,
        state: dict[str, Any],
        write_backend: Callable[[Path], Awaitable[None]],
        files: Mapping[str, bytes] = MappingProxyType({}),
    ) -> Path:
        """Write one checkpoint.

        Args:
            step: number of finished training steps.
            state: the trainer's state.
            write_backend: writes the backend's files into a directory.
            files: other files by name.

        Raises:
            CheckpointError: it could not be written. Older checkpoints are unchanged, and no partial files remain.
        """
        try:
            serialized = json.dumps(state)
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                "not-json",
                f"The state after {step} steps is not JSON data: {error}.",
                "Return only JSON values from every `state_dict`, for example of a sampler, and in metadata of groups.",
            ) from error
        final = self._directory / f"step_{step:06d}"
        temporary = self._directory / f".{final.name}.{os.getpid()}.tmp"
        try:
            self._remove_leftovers()
            (temporary / BACKEND).mkdir(parents=True)
            (temporary / STATE).write_text(serialized, encoding="utf-8")
            for name, content in files.items():
                (temporary / name).write_bytes(content)
            await write_backend(temporary / BACKEND)
            _write_manifest(temporary)
            if final.exists():  # damaged, or made by a run that was resumed from an older one
                final.rename(temporary.with_suffix(".old.tmp"))
            temporary.rename(final)
            self.point_latest_at(final)
            sync_directory(self._directory)
            self._remove_leftovers()
        except Exception as error:  # libraries report a full disk by their own exceptions
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, RllmError):
                raise
            raise CheckpointError(
                "not-writable",
                f"The checkpoint after {step} steps could not be written to {self._directory}: {error}.",
                self._what_is_left(),
            ) from error
        # Later ones are not counted: they are damaged, or this run would not have started before them.
        earlier = [path for path in self._all() if _parse_step(path) <= step and path.is_dir()]
        for old in earlier[: -self._keep]:
            shutil.rmtree(old, ignore_errors=True)
        return final

    def oldest_state(self) -> dict[str, Any]:
        """Return the trainer's state in the oldest readable checkpoint. Save one before."""
        return next(state for state in map(_read_state, self._all()) if state is not None)

    def latest_usable(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest checkpoint with undamaged files. None if there is no checkpoint.

        Raises:
            CheckpointError: all checkpoints are damaged.
        """
        damaged: dict[Path, str] = {}
        for directory in reversed(self._all()):
            problem = find_damage(directory)
            if problem is None:
                for each, what in damaged.items():
                    warn(
                        f"checkpoint {each} is damaged ({what}), so the run continues from {directory.name}. To use it,"
                        " stop, restore it from a backup, and repeat the command"
                    )
                return Checkpoint(directory, json.loads((directory / STATE).read_text(encoding="utf-8")))
            damaged[directory] = problem
        if damaged:
            what = "; ".join(f"{directory.name}: {problem}" for directory, problem in damaged.items())
            raise CheckpointError(
                "no-checkpoint",
                f"No checkpoint in {self._directory} can be used ({what}).",
                "Start again with --overwrite, or restore the directory from a backup.",
            )
        return None

    def _all(self) -> list[Path]:
        """Return the checkpoints, damaged ones included. A damaged one may be a file."""
        paths = (path for path in self._directory.glob("step_*") if _parse_step(path) >= 0)
        return sorted(paths, key=_parse_step)

    def _remove_leftovers(self) -> None:
        """Remove checkpoints that a save replaced, and files of processes that were killed while saving."""
        for leftover in (*self._directory.glob(".step_*.tmp"), *self._directory.glob(f".{LATEST_CHECKPOINT}.*.tmp")):
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)

    def point_latest_at(self, directory: Path) -> None:
        """Point the link `latest` at this checkpoint."""
        temporary = self._directory / f".{LATEST_CHECKPOINT}.{os.getpid()}.tmp"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(directory.name)
        temporary.replace(self._directory / LATEST_CHECKPOINT)

    def _what_is_left(self) -> str:
        usable = [directory.name for directory in self._all() if find_damage(directory) is None]
        if not usable:
            return "No earlier checkpoint exists. Make room or choose another rllm.trainer.output_dir, and start again."
        return f"{usable[-1]} is intact: make room, then continue from it with --resume."


def _read_state(directory: Path) -> dict[str, Any] | None:
    """Return the trainer's part of a checkpoint. None if it is damaged."""
    try:
        state: dict[str, Any] = json.loads((directory / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return state


def _parse_step(directory: Path) -> int:
    """Return the step in a checkpoint's name. -1 for other names."""
    number = directory.name.removeprefix("step_")
    return int(number) if number.isdecimal() else -1


def find_damage(directory: Path) -> str | None:
    """Return a description of the damage to a checkpoint's files, or None."""
    if directory.is_file():
        return "it is a file, not a directory"
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "no manifest"
    except (OSError, ValueError) as error:
        return f"unreadable manifest: {error}"
    if not isinstance(manifest, dict):
        return "unreadable manifest: not a mapping"
    if manifest.get("format_version") != FORMAT_VERSION:
        return f"format version {manifest.get('format_version')}, this rllm-core reads {FORMAT_VERSION}"
    digests = manifest.get("sha256")
    if not isinstance(digests, dict) or STATE not in digests:
        return "unreadable manifest: it does not list the files"
    for name, digest in digests.items():
        path = directory / name
        if not path.is_file():
            return f"{name} is missing"
        try:
            changed = sha256(path) != digest
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
        if changed:
            return f"{name} has changed since it was written"
    return None


def _write_manifest(directory: Path) -> None:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    digests = {str(path.relative_to(directory)): sha256(path) for path in files}
    manifest = directory / MANIFEST
    manifest.write_text(json.dumps({"format_version": FORMAT_VERSION, "sha256": digests}, indent=1), encoding="utf-8")
    for path in (*files, manifest):
        sync_file(path)
    for path in (*(path for path in directory.rglob("*") if path.is_dir()), directory):
        sync_directory(path)
