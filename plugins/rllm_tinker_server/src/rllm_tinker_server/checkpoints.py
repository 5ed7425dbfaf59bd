"""Checkpoints on disk and their names, ``tinker://<model id>/<kind>/<name>``.

Each is a directory that exists completely or not at all, and survives a restart.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast
from uuid import uuid4

from pydantic import TypeAdapter

from rllm_core.files import sync_directory, sync_file, write_atomically
from rllm_tinker_server.messages import LoraSpec, RequestError
from rllm_tinker_server.owners import Owner
from rllm_tinker_server.request_errors import NotFoundError, ServerError

Kind = Literal["weights", "sampler_weights", "external_weights"]
KINDS: tuple[Kind, ...] = ("weights", "sampler_weights", "external_weights")
EXTERNAL: Kind = "external_weights"
"""For other programs: what they download, and no model here is made from."""

_SCHEME = "tinker://"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_MODEL_ID = re.compile(r"[A-Za-z0-9-]{1,64}:train:[0-9]{1,9}")
_MODEL_DIRECTORY = re.compile(r"[A-Za-z0-9-]{1,64}\.train\.[0-9]{1,9}")


@dataclass(frozen=True)
class TinkerPath:
    """A validated name of a checkpoint. It is safe to join it to a directory."""

    model_id: str
    kind: Kind
    name: str

    def __post_init__(self) -> None:
        if not _MODEL_ID.fullmatch(self.model_id):
            raise RequestError(f"{self.model_id!r} is not the id of a model, such as 0f1e…:train:0.")
        if self.kind not in KINDS:
            raise RequestError(f"{self.kind!r} is not a kind of checkpoint. Kinds are {', '.join(KINDS)}.")
        if not is_name(self.name):
            raise RequestError(
                f"{self.name[:200]!r} cannot name a checkpoint: use 1 to 128 letters, digits, '.', '_' and '-', "
                "the first of them not a dot."
            )

    @classmethod
    def parse(cls, text: str) -> TinkerPath:
        """Parse ``tinker://…``. Raises RequestError."""
        parts = text.removeprefix(_SCHEME).split("/")
        if not text.startswith(_SCHEME) or len(parts) != 3:
            raise RequestError(
                f"{text[:200]!r} is not the path of a checkpoint, such as tinker://MODEL_ID/weights/NAME."
            )
        return cls(parts[0], cast(Kind, parts[1]), parts[2])

    def require_loadable(self) -> TinkerPath:
        """Return this path. Raises RequestError if no model can be loaded from its kind of checkpoint."""
        if self.kind == EXTERNAL:
            raise RequestError(
                f"{self} is an export for other programs. Load what save_state or save_weights_for_sampler saved."
            )
        return self

    def __str__(self) -> str:
        return f"{_SCHEME}{self.model_id}/{self.checkpoint_id}"

    @property
    def checkpoint_id(self) -> str:
        return f"{self.kind}/{self.name}"

    def below(self, root: Path) -> Path:
        """Return the directory of the checkpoint below `root`."""
        return root / self.model_id.replace(":", ".") / self.kind / self.name


def is_name(text: str) -> bool:
    """True if this is a valid checkpoint name. Names with a leading dot are reserved for this server's hidden files."""
    return _NAME.fullmatch(text) is not None and not text.startswith(".")


def model_of_directory(name: str) -> str | None:
    """Return the model whose checkpoints are in a directory of this name. None if the directory has no checkpoints."""
    return name.replace(".", ":") if _MODEL_DIRECTORY.fullmatch(name) else None


logger = logging.getLogger("rllm_tinker_server")

RECORD = "checkpoint.json"
LEFT_OVER_AFTER = 3600.0
"""Seconds after which a hidden directory is the rest of a killed server; another one may be writing until then."""
HOUR, TEN_YEARS = 3600, 10 * 366 * 86400


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Description of a checkpoint, available without loading its weights."""

    path: TinkerPath
    base_model: str
    spec: LoraSpec
    created: float
    """Seconds since the epoch."""
    expires: float | None = None
    size: int = 0
    """Bytes."""
    user_metadata: Mapping[str, Any] | None = None
    owner: str | None = None
    """`Owner.name`. None for checkpoints from before owners, which every key can read and none can change."""
    public: bool = False
    """True if every key can read it."""


_CHECKED = TypeAdapter(Checkpoint)


class Checkpoints:
    """All checkpoints below one directory. Call methods that write or remove on the training thread."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self.root = root
        self._clock = clock
        root.mkdir(parents=True, exist_ok=True)
        self._recover()

    def expiry(self, ttl_seconds: int | None) -> float | None:
        """Return the time when a checkpoint with this time to live expires. Raises RequestError."""
        if ttl_seconds is None:
            return None
        if not HOUR <= ttl_seconds <= TEN_YEARS:
            raise RequestError(f"ttl_seconds is {ttl_seconds}. It must be between 1 hour (3600) and 10 years.")
        return self._clock() + ttl_seconds

    def exists(self, path: TinkerPath) -> bool:
        return (path.below(self.root) / RECORD).is_file()

    def get(self, path: TinkerPath, owner: Owner) -> Checkpoint:
        """Return a checkpoint that the owner can read. Raises NotFoundError, also for checkpoints of others."""
        checkpoint = self._read(path)
        if (
            checkpoint is None
            or self._is_expired(checkpoint)
            or not (checkpoint.public or _can_list(checkpoint, owner))
        ):
            raise NotFoundError(
                f"No checkpoint {path}: it was never saved in {self.root} with this API key, or has expired or been "
                "deleted."
            )
        return checkpoint

    def directory(self, path: TinkerPath) -> Path:
        """Return the directory of a checkpoint's files."""
        return path.below(self.root)

    def of_model(self, model_id: str, owner: Owner) -> list[Checkpoint]:
        """Return the owner's checkpoints, and those without an owner, oldest first."""
        found = (self._read_if_sound(path) for path in self._paths_of(model_id))
        kept = [each for each in found if each is not None and not self._is_expired(each) and _can_list(each, owner)]
        return sorted(kept, key=lambda checkpoint: checkpoint.created)

    def model_ids(self) -> list[str]:
        """Models that have a directory, sorted."""
        found = (model_of_directory(entry.name) for entry in self.root.iterdir() if entry.is_dir())
        return sorted(model_id for model_id in found if model_id is not None)

    def write(self, checkpoint: Checkpoint, save: Callable[[Path], None], *, overwrite: bool) -> Checkpoint:
        """Have `save` fill a directory, and give it the checkpoint's name once all of it is on disk.

        Raises:
            RequestError: there is one of that name, and it is not to be overwritten.
            ServerError: the disk does not take it; nothing is left of it.
        """
        target = checkpoint.path.below(self.root)
        if self.exists(checkpoint.path) and not overwrite:
            raise RequestError(f"A checkpoint {checkpoint.path} exists. Use a different name, or overwrite=True.")
        with self._disk_faults(checkpoint.path):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{target.name}.{uuid4().hex}.tmp")
            try:
                temporary.mkdir()
                save(temporary)
                written = replace(checkpoint, size=sum(file.stat().st_size for file in _files(temporary)))
                write_atomically(temporary / RECORD, _to_json(written))
                for file in _files(temporary):
                    sync_file(file)
                sync_directory(temporary)
                _replace(target, temporary)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
        return written

    def set_expiry(self, path: TinkerPath, ttl_seconds: int | None, owner: Owner) -> None:
        """Give a checkpoint a new time to live, or none. Raises NotFoundError, RequestError, ServerError."""
        self._rewrite(replace(self._own(path, owner), expires=self.expiry(ttl_seconds)))

    def set_public(self, path: TinkerPath, owner: Owner, *, public: bool) -> None:
        """Let every key read a checkpoint, or only its owner. Raises NotFoundError, ServerError."""
        self._rewrite(replace(self._own(path, owner), public=public))

    def delete(self, path: TinkerPath, owner: Owner) -> None:
        """Delete a checkpoint of the owner. Raises NotFoundError."""
        _remove(self.directory(self._own(path, owner).path))

    def _own(self, path: TinkerPath, owner: Owner) -> Checkpoint:
        """Return a checkpoint that the owner can change. Raises NotFoundError."""
        checkpoint = self.get(path, owner)
        if not owner.owns(checkpoint.owner):
            raise NotFoundError(
                f"{path} was saved with a different API key. This key can read it, but cannot change it."
            )
        return checkpoint

    def _rewrite(self, checkpoint: Checkpoint) -> None:
        with self._disk_faults(checkpoint.path):
            write_atomically(self.directory(checkpoint.path) / RECORD, _to_json(checkpoint))

    def delete_expired_checkpoints(self) -> None:
        for model_id in self.model_ids():
            for path in self._paths_of(model_id):
                checkpoint = self._read_if_sound(path)
                if checkpoint is not None and self._is_expired(checkpoint):
                    _remove(path.below(self.root))

    def _is_expired(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.expires is not None and checkpoint.expires <= self._clock()

    def _paths_of(self, model_id: str) -> Iterator[TinkerPath]:
        for kind in KINDS:
            directory = TinkerPath(model_id, kind, "any").below(self.root).parent
            if directory.is_dir():
                # Skip directories that this server did not write.
                names = sorted(entry.name for entry in directory.iterdir() if is_name(entry.name))
                yield from (TinkerPath(model_id, kind, name) for name in names)

    def _read(self, path: TinkerPath) -> Checkpoint | None:
        file = path.below(self.root) / RECORD
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            return _CHECKED.validate_python({**found, "path": path})
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, TypeError, OSError) as error:
            raise ServerError(f"{file} is not the record of a checkpoint: {error}. Delete its directory.") from error

    def _read_if_sound(self, path: TinkerPath) -> Checkpoint | None:
        """Return the checkpoint for a list. Log a damaged checkpoint and return None, so that the list still works."""
        try:
            return self._read(path)
        except ServerError as error:
            logger.warning("%s", error)
            return None

    def _recover(self) -> None:
        """Undo what a killed server left half done."""
        for hidden in self.root.glob("*/*/.*"):
            kept = hidden.name.endswith(".old") and not _visible(hidden).exists()
            if kept:
                hidden.rename(_visible(hidden))
            elif time.time() - hidden.stat().st_mtime > LEFT_OVER_AFTER:
                shutil.rmtree(hidden, ignore_errors=True)

    @contextmanager
    def _disk_faults(self, path: TinkerPath) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = error.strerror or str(error)
            raise ServerError(
                f"The server could not write {path} below {self.root}: {why}. Nothing of it was kept. Make room there, "
                "then save again."
            ) from error


def _can_list(checkpoint: Checkpoint, owner: Owner) -> bool:
    return checkpoint.owner is None or owner.owns(checkpoint.owner)


def _files(directory: Path) -> list[Path]:
    return [entry for entry in directory.rglob("*") if entry.is_file()]


def _to_json(checkpoint: Checkpoint) -> str:
    return json.dumps({**asdict(checkpoint), "path": str(checkpoint.path)}, indent=1)


def _visible(hidden: Path) -> Path:
    """``.NAME.<hex>.old`` → ``NAME``."""
    return hidden.with_name(hidden.name[1:].rsplit(".", 2)[0])


def _replace(target: Path, temporary: Path) -> None:
    """Rename `temporary` to `target`. At no instant are both the old and the new content lost: see `_recover`."""
    old = target.with_name(f".{target.name}.{uuid4().hex}.old")
    if target.exists():
        target.rename(old)
    temporary.rename(target)
    sync_directory(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _remove(directory: Path) -> None:
    """Remove a directory so that it is never seen with half of its files."""
    hidden = directory.with_name(f".{directory.name}.{uuid4().hex}.tmp")
    directory.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)
