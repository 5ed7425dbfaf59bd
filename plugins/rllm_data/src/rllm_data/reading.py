"""Read a source as the splits of the library `datasets`, whose rows are memory-mapped from its cache."""

from __future__ import annotations

import csv
import hashlib
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rllm_core.errors import ConfigError, RllmError
from rllm_core.notices import one_line
from rllm_data.source import Source

if TYPE_CHECKING:
    from datasets import Dataset, Features

LONGEST_REASON = 300
DEADLINE = 8.0
"""Seconds until the hub counts as out of reach. The hub's own client retries for over half a minute."""
INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
DECIMAL = r"^-?(0|[1-9][0-9]{0,5})(\.0{0,3}([1-9][0-9]{0,6})?[1-9])?$"
"""Cells whose number is printed in the same way. 007 and 1.50 are not: they may be the text of an answer."""


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
        check_hub(source.place)
    try:
        with _show_progress_on_terminals():
            splits = _read(source, config)
    except RllmError:
        raise
    except Exception as error:
        raise _explain(source, error) from error
    if not any(len(split) for split in splits.values()):
        raise _no_rows_error(source)
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
        raise _no_rows_error(source)
    if source.builder == "parquet":
        import pyarrow.parquet

        if not pyarrow.parquet.read_metadata(source.place).num_rows:  # the library stumbles over it
            raise _no_rows_error(source)
    files = {"train": source.place}
    if source.builder == "csv":
        columns = read_text_columns(source.place)
        texts = datasets.load_dataset("csv", data_files=files, cache_dir=cache, features=columns, keep_default_na=False)
        return {name: convert_numbers(split) for name, split in texts.items()}
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
def _show_progress_on_terminals() -> Iterator[None]:
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


def _no_rows_error(source: Source) -> ConfigError:
    return ConfigError(
        "no-rows", f"{source.place} contains no rows.", "Write rows into it, or set the option path to different data."
    )


def _explain(source: Source, error: Exception) -> ConfigError:
    cause = error.__cause__ or error
    # Errors of the json and csv builders and of the library for a file without rows.
    nothing = isinstance(cause, StopIteration) or type(cause).__name__ == "EmptyDataError"
    if nothing or "corresponds to no data" in str(cause):
        return _no_rows_error(source)
    reason = one_line(f"{type(cause).__name__}: {cause}", LONGEST_REASON).rstrip(".") + "."
    if source.kind == "hub":
        hint = "Where HF_HUB_OFFLINE is set, only what was downloaded before can be read; check `config` too."
        return ConfigError("dataset-unreadable", f"Data set {source.place!r} of the hub cannot be read: {reason}", hint)
    kind = source.builder or "a data set"
    hint = "Look at what wrote it: `datasets.load_dataset` refuses it too."
    return ConfigError("dataset-unreadable", f"{source.place} cannot be read as {kind}: {reason}", hint)


def check_hub(name: str) -> None:
    """Return where the hub has the data set `name`, or where the environment says not to ask (``HF_HUB_OFFLINE``).

    Raises:
        ConfigError: the hub has none of that name, refuses it, or does not answer in time.
    """
    import datasets

    if datasets.config.HF_HUB_OFFLINE:
        return
    failed: list[Exception] = []

    def ask() -> None:
        from huggingface_hub import HfApi

        try:
            HfApi().dataset_info(name, timeout=DEADLINE)
        except Exception as error:  # noqa: BLE001  (told below, in the thread that asks)
            failed.append(error)

    # A look-up of a name has no deadline that Python could set, so that it may outlive this call.
    asking = threading.Thread(target=ask, name="rllm-data-hub", daemon=True)
    asking.start()
    asking.join(DEADLINE)
    if asking.is_alive():
        raise _out_of_reach(name, f"no answer in {DEADLINE:.0f} s")
    if failed:
        raise _explain_hub_error(name, failed[0]) from failed[0]


def _explain_hub_error(name: str, error: Exception) -> ConfigError:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return ConfigError(
            "gated-dataset",
            f"The data set {name!r} is gated: the hub gives it to accounts that have accepted its terms.",
            "Accept them on its page, and run `hf auth login`.",
        )
    if isinstance(error, RepositoryNotFoundError):
        return ConfigError(
            "dataset-not-found",
            f"There is no file or directory {name!r} here, and no such dataset on the hub.",
            "Set the option path to a file, a directory or OWNER/NAME. For a private dataset, run: hf auth login",
        )
    return _out_of_reach(name, one_line(f"{type(error).__name__}: {error}", 160))


def _out_of_reach(name: str, reason: str) -> ConfigError:
    return ConfigError(
        "service-unreachable",
        f"There is no file or directory {name!r} here, and the hub cannot be reached: {reason}.",
        "Set the option path to a local file, or check the network. Set HF_HUB_OFFLINE=1 to read downloaded data.",
    )


def read_text_columns(path: str) -> Features | None:
    """Return the columns of a file, all as text. None if it has no header."""
    import datasets

    with Path(path).open(encoding="utf-8-sig", newline="") as lines:
        header = next(csv.reader(lines), [])
    return datasets.Features({name: datasets.Value("string") for name in header}) if any(header) else None


def convert_numbers(split: Dataset) -> Dataset:
    """Return the rows with integers or floats in columns of numbers. Empty cells are null. Other columns have text.

    A column has numbers only if each cell is written as the number is printed. Without this, `datasets` reads 007 as 7,
    1.50 as 1.5 and NA as null, because pandas does.
    """
    import datasets
    import pyarrow.compute

    features = split.features.copy()
    for name in split.column_names:
        cells = split.data.column(name)
        filled = cells.filter(pyarrow.compute.not_equal(cells, ""))
        for pattern, kind in ((INTEGER, "int64"), (DECIMAL, "float64")):
            is_match = pyarrow.compute.match_substring_regex(filled, pattern)
            if len(filled) and pyarrow.compute.all(is_match).as_py():
                features[name] = datasets.Value(kind)
                break
    return split.map(_empty_as_null, batched=True).cast(features)


def _empty_as_null(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: [cell or None for cell in cells] for name, cells in columns.items()}
