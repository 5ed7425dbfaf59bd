"""A source as the splits of the library `datasets`: rows are memory-mapped, from its cache."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rllm_core.errors import ConfigError, RllmError
from rllm_core.notices import one_line
from rllm_data.csv_numbers import text_columns, with_numbers
from rllm_data.hub import ask_hub
from rllm_data.source import Source

if TYPE_CHECKING:
    from datasets import Dataset

LONGEST_REASON = 300


def read_splits(source: Source, config: str | None) -> Mapping[str, Dataset]:
    """All splits, by name.

    Args:
        source: what to read.
        config: configuration of a data set on the hub or of a directory; None: its only one.

    Raises:
        ConfigError: it cannot be read, has no rows, or the hub does not give it.
    """
    if config is not None and source.kind in ("file", "saved"):
        raise ConfigError(
            "unknown-split",
            f"Option `config` is {config!r}, but {source.place} has no configurations.",
            "Remove the option `config`.",
        )
    if source.kind == "hub":
        ask_hub(source.place)
    try:
        with _bars_on_terminals():
            splits = _read(source, config)
    except RllmError:
        raise
    except Exception as error:
        raise _explained(source, error) from error
    if not any(len(split) for split in splits.values()):
        raise _without_rows(source)
    if source.builder == "json":
        _check_no_times(next(iter(splits.values())).features, source.place)
    return splits


def _check_no_times(features: Any, place: str, above: str = "") -> None:
    """Raise ConfigError if the library made times of a JSON file's text, because the text is lost then."""
    if isinstance(features, Mapping):
        for name, feature in features.items():
            _check_no_times(feature, place, f"{above}.{name}" if above else str(name))
    elif hasattr(features, "feature"):
        _check_no_times(features.feature, place, above)
    elif str(getattr(features, "dtype", "")).startswith(("timestamp", "date", "time")):
        raise ConfigError(
            "dataset-unreadable",
            f"{place}: the library `datasets` reads the text of {above!r} as times, which changes it.",
            "Write one JSON object per line into a .jsonl file, whose text the dataset jsonl does not change.",
        )


def _read(source: Source, config: str | None) -> Mapping[str, Dataset]:
    import datasets

    if source.kind == "saved":
        saved = datasets.load_from_disk(source.place)
        return saved if isinstance(saved, Mapping) else {str(saved.split or "train"): saved}
    if source.kind == "hub":
        return cast("Mapping[str, Dataset]", datasets.load_dataset(source.place, config))
    cache = str(Path(datasets.config.HF_DATASETS_CACHE) / _version(Path(source.place)))
    if source.kind == "directory":
        # Absolute: a directory named `json` would be taken for the builder of that name.
        place = str(Path(source.place).resolve())
        return cast("Mapping[str, Dataset]", datasets.load_dataset(place, config, cache_dir=cache))
    if not Path(source.place).stat().st_size:
        raise _without_rows(source)
    if source.builder == "parquet":
        import pyarrow.parquet

        if not pyarrow.parquet.read_metadata(source.place).num_rows:  # the library stumbles over it
            raise _without_rows(source)
    files = {"train": source.place}
    if source.builder == "csv":
        columns = text_columns(source.place)
        texts = datasets.load_dataset("csv", data_files=files, cache_dir=cache, features=columns, keep_default_na=False)
        return {name: with_numbers(split) for name, split in texts.items()}
    return cast("Mapping[str, Dataset]", datasets.load_dataset(source.builder, data_files=files, cache_dir=cache))


def _version(path: Path) -> str:
    """Return a name for the present content of a file or directory.

    The cache of `datasets` takes a file for unchanged if its path and its time of modification are. Programs that copy
    files keep this time. They cannot set the time of the last change of the inode.
    """
    files = [file for file in sorted(path.rglob("*")) if file.is_file()] if path.is_dir() else [path]
    stamps = [(str(file), file.stat().st_size, file.stat().st_ctime_ns) for file in files]
    return f"rllm-{hashlib.blake2b(repr(stamps).encode(), digest_size=8).hexdigest()}"


@contextmanager
def _bars_on_terminals() -> Iterator[None]:
    """A log file has no use for bars of progress."""
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if sys.stderr.isatty() or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _without_rows(source: Source) -> ConfigError:
    return ConfigError(
        "no-rows", f"{source.place} contains no rows.", "Write rows into it, or set the option path to different data."
    )


def _explained(source: Source, error: Exception) -> ConfigError:
    cause = error.__cause__ or error
    # Errors of the json and csv builders and of the library for a file without rows.
    nothing = isinstance(cause, StopIteration) or type(cause).__name__ == "EmptyDataError"
    if nothing or "corresponds to no data" in str(cause):
        return _without_rows(source)
    reason = one_line(f"{type(cause).__name__}: {cause}", LONGEST_REASON).rstrip(".") + "."
    if source.kind == "hub":
        hint = "Where HF_HUB_OFFLINE is set, only what was downloaded before can be read; check `config` too."
        return ConfigError("dataset-unreadable", f"Data set {source.place!r} of the hub cannot be read: {reason}", hint)
    kind = source.builder or "a data set"
    hint = "Look at what wrote it: `datasets.load_dataset` refuses it too."
    return ConfigError("dataset-unreadable", f"{source.place} cannot be read as {kind}: {reason}", hint)
