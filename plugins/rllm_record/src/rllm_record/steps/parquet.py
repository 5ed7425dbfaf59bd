"""Write a file of a record atomically, and read a file after a check of its schema version."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rllm_core.errors import RllmError
from rllm_core.files import sync_file
from rllm_record.steps.schemas import ENCODINGS


class RecordError(RllmError):
    """A record cannot be written or read."""


VERSION = 4
"""Version of the tables. Files with a different version are rejected."""
VERSION_KEY = b"rllm.record.version"


def require_known_version(place: Path, metadata: Mapping[bytes, bytes] | None) -> None:
    """Reject a file that this package cannot read correctly.

    Args:
        place: path of the file, for the error.
        metadata: metadata of its schema.

    Raises:
        RecordError: the file has a different schema version, or does not belong to a record.
    """
    version = (metadata or {}).get(VERSION_KEY, b"").decode()
    if not version.isdecimal():
        raise RecordError(
            "wrong-file-type", f"{place} is not a record of a step.", "Use a file in record/ of a run directory."
        )
    if int(version) != VERSION:
        raise RecordError(
            "wrong-schema-version",
            f"{place} has schema {version}, but this rllm-record reads schema {VERSION}.",
            "Use the version of rllm-record that wrote the file, or train again.",
        )


GROUP_BYTES = 2**22
"""Approximate size of a row group, in bytes uncompressed. To read one row, its whole group is read."""

SMALL = 2**18
"""Files up to this size, in bytes uncompressed, use lz4, because it takes half of the time of zstd."""

_FORM: dict[str, Any] = {
    # Without these, files of a few hundred rows are smaller and are written faster.
    "use_dictionary": False,
    "write_statistics": False,
    # The columns have types that Parquet supports, so readers do not need the Arrow schema.
    "store_schema": False,
}


def encode_table(table: pa.Table, marks: Mapping[bytes, str]) -> bytes:
    """Return the contents of a Parquet file.

    Raises:
        ArrowException: the table cannot be encoded.
    """
    rows = max(1, table.num_rows * GROUP_BYTES // max(1, table.nbytes))
    # Level 5 is 6 % smaller than level 1, in the same time.
    how: dict[str, Any] = {"compression": "zstd", "compression_level": 5}
    if table.nbytes <= SMALL:
        how = {"compression": "lz4"}
    encodings = {path: name for path, name in ENCODINGS.items() if path.partition(".")[0] in table.column_names}
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, column_encoding=encodings or None, **how, **_FORM) as writer:
        writer.write_table(table, row_group_size=rows)
        writer.add_key_value_metadata({VERSION_KEY: str(VERSION), **marks})
    contents: bytes = sink.getvalue().to_pybytes()
    return contents


def write_file(place: Path, contents: bytes) -> None:
    """Write a file, and replace an earlier one.

    Raises:
        OSError: the file cannot be written.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(contents)
        sync_file(temporary)
        temporary.replace(place)
    finally:
        temporary.unlink(missing_ok=True)


def read_table(place: Path, schema: pa.Schema) -> pa.Table:
    """Read a whole file. Columns that it does not contain are null.

    Raises:
        RecordError: the file cannot be read, or has a different schema version.
    """
    with _open_file(place) as file:
        return _with_all_columns(file.read(), schema)


def read_columns(place: Path, paths: Sequence[str]) -> pa.Table:
    """Read some columns of a file, by their paths in it.

    Raises:
        RecordError: as `read_table`.
    """
    with _open_file(place) as file:
        return file.read(columns=list(paths))


def read_rows(place: Path, schema: pa.Schema, column: str, value: str) -> pa.Table:
    """Read the rows with a value in a string column, or in a string field of a list of structures.

    Reads this column completely, and all columns of the row groups that contain such a row.

    Args:
        place: the file.
        schema: schema of the result.
        column: path of the column in the file, such as ``trajectory`` or ``trajectories.list.element.uid``.
        value: the value to find.

    Raises:
        RecordError: as `read_table`.
    """
    with _open_file(place) as file:
        found = [file.schema_arrow.empty_table()]
        for group in range(file.num_row_groups):
            rows = _rows_with(file.read_row_group(group, columns=[column])[column.partition(".")[0]], value)
            if len(rows):
                found.append(file.read_row_group(group).take(rows))
        return _with_all_columns(pa.concat_tables(found), schema)


def read_marks(place: Path) -> Mapping[bytes, bytes]:
    """Read the metadata of a file.

    Raises:
        RecordError: as `read_table`.
    """
    with _open_file(place) as file:
        marks: Mapping[bytes, bytes] = file.schema_arrow.metadata
        return marks


def _rows_with(column: pa.ChunkedArray, value: str) -> pa.Array:
    """Return the (n,) row numbers at which a column contains `value`."""
    if not pa.types.is_list(column.type):
        return pc.indices_nonzero(pc.equal(column, value))
    values = pa.concat_arrays(column.chunks)
    places = pc.indices_nonzero(pc.equal(values.flatten().field(0), value))
    return pa.array(np.unique(pc.list_parent_indices(values).take(places).to_numpy()))


@contextmanager
def _open_file(place: Path) -> Iterator[pq.ParquetFile]:
    try:
        # Open it as one file. A Parquet dataset would look for some columns in the path.
        with pq.ParquetFile(place) as file:
            require_known_version(place, file.schema_arrow.metadata)
            yield file
    except FileNotFoundError as error:
        raise RecordError(
            "no-record",
            f"There is no record at {place}.",
            "To record a run, train it with `rllm.record=outcomes` or `rllm.record=tokens`.",
        ) from error
    except RecordError:
        raise
    except Exception as error:  # A damaged file can raise anything in pyarrow: UnicodeDecodeError, MemoryError.
        # Messages of pyarrow end with a full stop, but messages of the operating system do not.
        raise RecordError(
            "file-unreadable",
            f"{place} cannot be read: {str(error).rstrip('.')}.",
            "Copy it back from a backup. The other steps can still be read.",
        ) from error


def _with_all_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Add the columns that the file does not contain. Their values are null."""
    table.validate(full=True)
    if table.schema.equals(schema):
        return table
    # pyarrow can add fields inside structures only by way of Python objects.
    return pa.Table.from_pylist(table.to_pylist(), schema.with_metadata(table.schema.metadata))
