"""Find out if a path means a file, a directory, or a dataset on the hub. This reads no rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from rllm_core.errors import ConfigError, did_you_mean

BUILDERS: Mapping[str, str] = MappingProxyType(
    {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".arrow": "arrow"}
)
"""Ending of a file -> the builder of the library `datasets` that reads it."""
ENDINGS = frozenset(BUILDERS) - {".jsonl"}
"""Endings by which `hf` is chosen. `jsonl` of rllm reads .jsonl."""
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
_SAVED = ("state.json", "dataset_dict.json")
"""Files that `save_to_disk` of `datasets` writes into a directory: for one split, and for several splits."""
_ABOUT_DATA = re.compile(r"dataset_infos?\.json|state\.json|dataset_dict\.json")


@dataclass(frozen=True)
class Source:
    """Source of rows."""

    kind: Literal["file", "directory", "saved", "hub"]
    place: str
    """The path of a file or directory, or the id on the hub."""
    builder: str = ""
    """Builder of `datasets` that reads the file or the directory. Empty for other sources."""

    @property
    def name(self) -> str:
        """Name of the rows in validation tables."""
        if self.kind == "hub":
            return self.place
        path = Path(self.place).resolve()
        return path.stem if self.kind == "file" else path.name


def find_source(path: str) -> Source:
    """The source that the option `path` means.

    Raises:
        ConfigError: the path does not exist, is empty or damaged, or has an unknown suffix.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        return _directory(place)
    if place.exists():
        return _file(place)
    if place.suffix.lower() in BUILDERS or not _HUB_ID.fullmatch(path):
        raise _missing_file_error(place)
    return Source("hub", path)


def _file(path: Path) -> Source:
    builder = BUILDERS.get(path.suffix.lower())
    if builder is None:
        suffix = f"the suffix {path.suffix}" if path.suffix else "no suffix"
        raise ConfigError(
            "unknown-file-type",
            f"{path} has {suffix}.",
            f"Dataset hf reads {', '.join(BUILDERS)}: convert or rename the file.",
        )
    return Source("file", str(path), builder)


def _directory(path: Path) -> Source:
    if any((path / name).is_file() for name in _SAVED):
        return Source("saved", str(path))
    found: dict[str, Path] = {}
    for file in sorted(path.rglob("*")):
        builder = BUILDERS.get(file.suffix.lower())
        if builder and file.is_file() and not _is_about_data(file.relative_to(path)):
            found.setdefault(builder, file)
    if not found:
        raise ConfigError(
            "unknown-file-type",
            f"The directory {path} contains no data.",
            f"Dataset hf reads {', '.join(BUILDERS)}: name a directory with such files.",
        )
    if len(found) > 1:
        examples = " and ".join(str(file.relative_to(path)) for file in found.values())
        raise ConfigError(
            "unknown-file-type",
            f"The directory {path} contains files of several kinds: {examples}.",
            "Name one file, or a directory for each kind.",
        )
    return Source("directory", str(path), next(iter(found)))


def _is_about_data(file: Path) -> bool:
    """True for hidden files, and for files that the hub's tools write next to the data."""
    return any(part.startswith((".", "_")) for part in file.parts) or _ABOUT_DATA.fullmatch(file.name) is not None


def _missing_file_error(path: Path) -> ConfigError:
    neighbors = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    start = f"Option `path` of dataset hf starts from the directory the command runs in, {Path.cwd()}."
    return ConfigError(
        "file-not-found", f"{path} is not there.", f"{did_you_mean(path.name, neighbors)} {start}".strip()
    )
