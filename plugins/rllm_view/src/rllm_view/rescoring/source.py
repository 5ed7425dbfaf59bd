"""Find and read stored episodes (in a run directory, a directory of episodes, or one file), and their run's config."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from rllm.config import (
    FILE_NAME,
    FILE_NAME as CONFIG,
    as_config_error,
    describe,
    find_section,
    import_modules,
    known_keys,
    parse,
    read_config,
)
from rllm.runs.episode_log import MARKER
from rllm_core.data.codec import SCHEMA_VERSION, episode_from_json
from rllm_core.data.types import Episode
from rllm_core.errors import ConfigError, RllmError
from rllm_core.files import open_to_read
from rllm_core.pipeline import BUILT_IN
from rllm_core.plugins.registry import Registry
from rllm_core.schema.algorithm_sections import PipelineSection
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.section import Choice

if TYPE_CHECKING:
    from rllm_record.steps import PlayedEpisode


PARQUET = ".parquet"
"""Suffix of the files of a run's record (`rllm.record=tokens`)."""
GZIP = b"\x1f\x8b"
"""First bytes of a compressed file (RFC 1952)."""


class EpisodesError(RllmError):
    """Stored episodes cannot be found or read."""

    exit_code = 2


@dataclass(frozen=True)
class FileContent:
    """Content of one file."""

    rounds: list[list[Episode]]
    """The episodes of a step, by rollout batch. At least one batch."""
    skipped: int
    """Number of lines skipped because the file ends inside them: 0 or 1."""


def read_record(file: Path) -> Sequence[PlayedEpisode]:
    """Return the episodes of a file of a record.

    Raises:
        EpisodesError: the file is not a record with tokens.
    """
    from rllm_record.steps import RecordError
    from rllm_record.steps.files import read_episodes

    try:
        return read_episodes(file)
    except RecordError as error:
        raise EpisodesError(error.code, error.message, error.hint) from error


def read_file(file: Path) -> FileContent:
    """All whole episodes of a file of a record, or of a JSON Lines file, compressed or not.

    Raises:
        EpisodesError: a line before the last is no episode, the file is damaged, or another schema version wrote it.
    """
    if file.suffix == PARQUET:
        played = read_record(file)
        last = max((each.round for each in played), default=0)
        return FileContent([[each.episode for each in played if each.round == key] for key in range(last + 1)], 0)
    rounds: dict[int, list[Episode]] = defaultdict(list)
    skipped = 0
    with _opened(file) as lines:
        for number, line in enumerate(_lines(lines, file), 1):
            if line is None:
                skipped = 1
                break
            try:
                number_of_round, episode = _episode(line)
                rounds[number_of_round].append(episode)
            except EpisodesError as error:
                raise EpisodesError(error.code, f"{file}, line {number}: {error.message}", error.hint) from error
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                if not line.endswith(b"\n"):
                    skipped = 1
                    break
                raise _damaged(file, number, f"no episode ({type(error).__name__}: {error})") from error
    return FileContent([rounds[key] for key in range(max(rounds, default=0) + 1)], skipped)


@contextmanager
def _opened(file: Path) -> Iterator[BufferedIOBase]:
    with ExitStack() as opened:
        try:
            raw = opened.enter_context(open_to_read(file))
            compressed = raw.peek(len(GZIP)).startswith(GZIP)
        except OSError as error:
            raise EpisodesError(
                "file-unreadable", f"{file} cannot be read: {error.strerror}.", "Name a regular file that you may read."
            ) from error
        yield opened.enter_context(gzip.GzipFile(fileobj=raw)) if compressed else raw


def _lines(lines: BufferedIOBase, file: Path) -> Iterator[bytes | None]:
    """Yield each line. Yield None instead of the last line if the compressed stream is truncated."""
    number = 1
    while True:
        try:
            line = lines.readline()
        except EOFError:
            yield None
            return
        except (OSError, zlib.error) as error:
            raise _damaged(file, number, f"it cannot be decompressed ({error})") from error
        if not line:
            return
        yield line
        number += 1


def _episode(line: bytes) -> tuple[int, Episode]:
    """Return the number of the rollout batch (0 in older files, which do not store it) and the episode."""
    data: Any = json.loads(line)
    version = data["schema_version"]
    if version != SCHEMA_VERSION:
        raise EpisodesError(
            "schema-too-new",
            f"an episode has schema version {version}, but this rllm-core reads version {SCHEMA_VERSION}.",
            "Use the rllm-core that wrote it, or train again with this one.",
        )
    return int(data.get("round", 0)), episode_from_json(data)


def _damaged(file: Path, number: int, what: str) -> EpisodesError:
    return EpisodesError(
        "wrong-file-type",
        f"{file}, line {number}: {what}.",
        "Give a run folder or a file of episodes. If this is such a file, it is damaged: restore it, or move it away.",
    )


CORE_ONLY = "rllm"
"""Section of config that only the core defines. A backend may add keys to the other sections."""

OPTIONAL = frozenset({"compact_filter"})
"""Stages that a replay does not need. The other stages compute the estimators' inputs."""


def read_stored_config(run_folder: Path) -> RunConfig:
    """Return a run's configuration, from its ``config.yaml``.

    Raises:
        ConfigError: the file cannot be read, or a version with other keys wrote it.
    """
    file = str(run_folder / FILE_NAME)
    tree = read_config(run_folder)
    values = {
        name: _known(section, tree[name]) if (section := find_section(RunConfig, name)) else tree[name]
        for name in RunConfig.model_fields
        if name in tree
    }
    values |= {CORE_ONLY: tree.get(CORE_ONLY, {})}
    try:
        return parse(RunConfig, values)
    except ValidationError as error:
        problem = as_config_error(describe(error, values, lambda path: file, known_keys(RunConfig)))
        raise ConfigError(problem.code, problem.message, "It may come from another version of rllm-core.") from error


def stored_registry(config: RunConfig, modules: Sequence[str] = ()) -> Registry:
    """Return the run's plugins that are installed here or can be imported here.

    Args:
        config: the run's config.
        modules: modules to import in addition to the run's modules.

    Raises:
        ConfigError: a module cannot be imported.
        PluginError: a module registers an invalid plugin.
    """
    import_modules([*config.rllm.plugins.import_modules, *modules])
    return Registry.load(allow=config.rllm.plugins.allow)


def third_party_stages(settings: PipelineSection) -> tuple[str, ...]:
    """Stages of the run that are not the core's, by name."""
    placed = [*(settings.stages or ()), *(edit["stage"] for edit in settings.insert), *settings.replace.values()]
    return tuple(name for name in dict.fromkeys(map(_name, placed)) if name not in BUILT_IN)


def left_out_stages(settings: PipelineSection) -> frozenset[str]:
    """Optional stages of the core that the run did not have."""
    listed = BUILT_IN if settings.stages is None else tuple(map(_name, settings.stages))
    had = set(listed) - set(settings.remove) - set(settings.replace)
    return OPTIONAL - had


def _known(section: type[BaseModel], values: object) -> object:
    """A section's values without keys that are not the core's."""
    if not isinstance(values, dict):
        return values
    known = {key: value for key, value in values.items() if key in section.model_fields}
    return {
        key: _known(inner, value) if (inner := find_section(section, key)) else value for key, value in known.items()
    }


def _name(choice: Choice) -> str:
    name = choice if isinstance(choice, str) else str(choice.get("name", ""))
    return name.removeprefix("rllm-core/")


STEP_FILE = re.compile(r"step_(\d+)\.(?:jsonl|jsonl\.gz|parquet)")
RECORD = Path("record", "episodes")
"""Folder of a record's episodes in a run folder."""
HOW_TO_KEEP = "A run keeps its episodes with rllm.record=tokens, or rllm.episode_logging.log_episodes=true."


@dataclass(frozen=True, kw_only=True)
class StoredEpisodes:
    """Files of episodes and the run they come from."""

    path: Path
    """As the user gave it."""
    files: tuple[tuple[int, Path], ...]
    """Training step, counted from 0, and its file; in order. A file whose name tells no step counts as step 0."""
    run_folder: Path | None
    """Folder of the run. None if no configuration was found for the episodes."""


def find_episodes(path: Path) -> StoredEpisodes:
    """Find the episodes at `path`: a run folder, its folder of episodes, a folder that a run logged to, or one file.

    A record with tokens comes before a log.

    Raises:
        EpisodesError: there are none.
    """
    if not path.exists():
        raise EpisodesError(
            "file-not-found", f"There is nothing at {path}.", f"Name a run folder or a file of episodes. {HOW_TO_KEEP}"
        )
    if not path.is_dir():
        named = STEP_FILE.fullmatch(path.name)
        return StoredEpisodes(
            path=path, files=((int(named[1]) if named else 0, path),), run_folder=_run_of(path.parent)
        )
    for folder in _folders(path):
        if files := _step_files(folder):
            return StoredEpisodes(path=path, files=files, run_folder=_run_of(folder))
    raise _none_in(path)


def step_files_in(path: Path) -> tuple[tuple[int, Path], ...]:
    """Step and file of the episodes at `path`, in order; empty where it has none with tokens."""
    return next(filter(None, map(_step_files, (path, path / RECORD, path / "episodes"))), ())


def _folders(path: Path) -> list[Path]:
    """Return the folders that may contain the episodes of a folder."""
    folders = [path, path / RECORD, path / "episodes"]
    if (path / CONFIG).is_file() and (elsewhere := read_stored_config(path).rllm.episode_logging.episode_log_dir):
        folders.append(Path(elsewhere).expanduser())
    return folders


def _step_files(folder: Path) -> tuple[tuple[int, Path], ...]:
    if not folder.is_dir():
        return ()
    named = [(STEP_FILE.fullmatch(file.name), file) for file in folder.iterdir()]
    files = tuple(sorted((int(match[1]), file) for match, file in named if match))
    return files if files and _has_tokens(files[-1][1]) else ()


def _has_tokens(file: Path) -> bool:
    """Return False for a file of a record that was written without tokens."""
    if file.suffix != PARQUET:
        return True
    from rllm_record.steps.files import holds_tokens

    return holds_tokens(file)


def _run_of(folder: Path) -> Path | None:
    """The run folder that episodes in `folder` belong to: named by a marker, or the folder itself or above it."""
    candidates = [folder]
    if folder.absolute().name == "episodes":
        candidates += [folder.parent, folder.parent.parent]
    marker = folder / MARKER
    if marker.is_file():
        try:
            candidates.append(Path(json.loads(marker.read_text(encoding="utf-8"))["run_folder"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EpisodesError(
                "file-unreadable",
                f"{marker} cannot be read: {error}. This file contains the run folder of the episodes next to it.",
                f"To continue without the run's configuration, run: rm {marker}",
            ) from error
    return next((candidate for candidate in candidates if (candidate / CONFIG).is_file()), None)


def _none_in(path: Path) -> EpisodesError:
    runs = {folder.parent for folder in path.glob("*/episodes")}
    runs |= {folder.parents[1] for folder in path.glob(f"*/{RECORD}")}
    names = sorted(run.name for run in runs if run != path / RECORD.parent)
    if names:
        return EpisodesError(
            "no-episodes", f"{path} itself contains no episodes.", f"Give one of the runs in it: {', '.join(names)}."
        )
    if (path / "eval.json").is_file():
        return EpisodesError(
            "not-rescorable", f"{path} is a saved evaluation.", "Score it with a different reward: --reward NAME."
        )
    what = "The run in" if (path / CONFIG).is_file() else "The folder"
    return EpisodesError("no-episodes", f"{what} {path} contains no episodes.", HOW_TO_KEEP)
