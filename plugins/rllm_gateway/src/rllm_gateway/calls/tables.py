"""The tables of a store, and rows of a store as their records, and back."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rllm_core.data.version_spans import VersionSpan
from rllm_gateway.calls.rows import CallRow, DeliveryRow, EndRow, RewardRow, Row, SessionRow, StoreError

APPLICATION = 0x726C6C63
"""Marks the file as a store of calls (SQLite's application_id): ``rllc``."""
VERSION = 1

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "sessions": ("id", "run", "key_hash", "opened", "head", "digest"),
    "requests": ("body", "digest"),
    "calls": ("session", "id", "request", "head", "new_ids", "response_ids", "logprobs", "text", "digest"),
    "deliveries": ("session", "call", "head", "digest"),
    "rewards": ("session", "head", "digest"),
    "ends": ("session", "head", "digest"),
}
"""Table -> its columns after the record's number. The last column is a digest of the others."""
INSERT = {
    table: f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    for table, columns in COLUMNS.items()
} | {
    "requests": "INSERT OR IGNORE INTO requests (body, digest) VALUES (?, ?)",
    "deliveries": "INSERT OR IGNORE INTO deliveries (session, call, head, digest) VALUES (?, ?, ?, ?)",
}

# AUTOINCREMENT never uses a number again, so numbers are in the order of storage.
TABLES = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
CREATE TABLE sessions (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, run TEXT NOT NULL, key_hash TEXT NOT NULL,
    opened REAL NOT NULL, head BLOB NOT NULL, digest BLOB NOT NULL
);
CREATE UNIQUE INDEX sessions_known ON sessions (id);
CREATE INDEX sessions_by_key ON sessions (key_hash);
CREATE TABLE requests (number INTEGER PRIMARY KEY AUTOINCREMENT, body BLOB NOT NULL, digest BLOB NOT NULL);
CREATE UNIQUE INDEX requests_known ON requests (digest);
CREATE TABLE calls (
    number INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    id TEXT NOT NULL, request BLOB NOT NULL, head BLOB NOT NULL, new_ids BLOB NOT NULL, response_ids BLOB NOT NULL,
    logprobs BLOB NOT NULL, text BLOB NOT NULL, digest BLOB NOT NULL
);
CREATE UNIQUE INDEX calls_known ON calls (session, id);
CREATE INDEX calls_by_request ON calls (request);
CREATE TABLE deliveries (
    number INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, call TEXT NOT NULL, head BLOB NOT NULL,
    digest BLOB NOT NULL, FOREIGN KEY (session, call) REFERENCES calls (session, id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX deliveries_known ON deliveries (session, call);
CREATE TABLE rewards (
    number INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    head BLOB NOT NULL, digest BLOB NOT NULL
);
CREATE INDEX rewards_known ON rewards (session);
CREATE TABLE ends (
    number INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    head BLOB NOT NULL, digest BLOB NOT NULL
);
CREATE UNIQUE INDEX ends_known ON ends (session);
CREATE TRIGGER no_calls_after_the_end BEFORE INSERT ON calls
    WHEN EXISTS (SELECT 1 FROM ends WHERE session = NEW.session) BEGIN SELECT RAISE(ABORT, 'sealed'); END;
CREATE TRIGGER no_rewards_after_the_end BEFORE INSERT ON rewards
    WHEN EXISTS (SELECT 1 FROM ends WHERE session = NEW.session) BEGIN SELECT RAISE(ABORT, 'sealed'); END;
"""


Value: TypeAlias = str | bytes | float
_IDS, _LOGPROBS = np.dtype("<i4"), np.dtype("<f4")


class Record(NamedTuple):
    """A row of a table."""

    table: str
    values: tuple[Value, ...]
    """Values in the order of `schema.COLUMNS`."""


def encode_row(row: Row) -> tuple[Record, ...]:
    """Return the records to insert for a row, in order.

    Raises:
        StoreError: `row` is not a row, contains a value that is not JSON data, or has arrays with wrong dtypes.
    """
    try:
        return tuple(Record(table, (*values, digest_of(values))) for table, values in _tables_of(row))
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise StoreError("store-failed", f"This {type(row).__name__} cannot be stored: {error}.") from error


def _tables_of(row: Row) -> list[tuple[str, tuple[Value, ...]]]:
    match row:
        case SessionRow():
            head = asdict(row) | {"metadata": dict(row.metadata)}
            # Stores keep the name that earlier versions wrote.
            head["attempt"] = head.pop("rollout")
            # SQLite stores -0.0 as 0.0. Add 0.0, so that the digest matches the stored value.
            return [("sessions", (row.id, row.run, row.key_hash, float(row.opened) + 0.0, _json(head)))]
        case CallRow():
            request = _json({"sent": dict(row.sent), "outcomes": dict(row.outcomes)})
            return [("requests", (request,)), ("calls", _call_values(row, digest_of((request,))))]
        case DeliveryRow():
            return [("deliveries", (row.session, row.call, _json(asdict(row))))]
        case RewardRow():
            return [("rewards", (row.session, _json(asdict(row))))]
        case EndRow():
            return [("ends", (row.session, _json(asdict(row))))]
    raise TypeError("it is no row of a store of calls")


_HEAD = (
    *("role", "parent", "kept_tokens", "kept_messages", "prompt_digest"),
    *("weight_version", "version_spans", "finish_reason", "started", "seconds", "parameters"),
)
"""Fields of a `CallRow` that are JSON data of the call."""


def _call_values(row: CallRow, request: bytes) -> tuple[Value, ...]:
    head = {name: getattr(row, name) for name in _HEAD} | {"parameters": dict(row.parameters)}
    return (
        row.session,
        row.id,
        request,
        _json(head),
        _array(row.new_ids, _IDS),
        _array(row.response_ids, _IDS),
        _array(row.logprobs, _LOGPROBS),
        _json({"messages": list(row.messages), "reply": row.response}),
    )


def decoded_session(head: Value) -> SessionRow:
    """Return the row of a session."""
    fields = from_json(head)
    return SessionRow(rollout=fields.pop("attempt"), **fields)


def decoded_call(values: Sequence[Value], request: bytes, delivered: bool) -> CallRow:
    """Return the row of a call, from its row of the table `calls` and the body of its row of `requests`."""
    session, id, _, head, new_ids, response_ids, logprobs, text, _ = values
    # Select fields by name, because earlier versions wrote more fields.
    fields = from_json(head)
    fields = {name: fields[name] for name in _HEAD}
    texts = from_json(text)
    fields["version_spans"] = tuple(VersionSpan(*span) for span in fields["version_spans"])
    return CallRow(
        id=str(id),
        session=str(session),
        new_ids=_from_bytes(new_ids, _IDS),
        response_ids=_from_bytes(response_ids, _IDS),
        logprobs=_from_bytes(logprobs, _LOGPROBS),
        delivered=delivered,
        messages=texts["messages"],
        response=texts["reply"],
        **fields,
        **from_json(request),
    )


def agrees(values: Sequence[Any]) -> bool:
    """True if the values of a record match its digest, which is the last value."""
    try:
        return digest_of(values[:-1]) == bytes(values[-1])
    except TypeError:
        return False


def digest_of(values: Sequence[Value]) -> bytes:
    """Return a digest of 16 bytes of values, their types and their lengths.

    Raises:
        TypeError: a value has a type that no column has.
    """
    digest = blake2b(digest_size=16)
    for value in values:
        match value:
            case bytes():
                tag, content = b"b", value
            case str():
                tag, content = b"s", value.encode()
            case float():
                tag, content = b"f", struct.pack("<d", value)
            case _:
                raise TypeError(f"{value!r} is neither text nor bytes nor a float")
        digest.update(tag + struct.pack("<q", len(content)))
        digest.update(content)
    return digest.digest()


def from_json(body: Value) -> Any:
    """Decode the output of `_json`."""
    assert isinstance(body, bytes)
    return json.loads(body.decode("utf-8", "surrogatepass"))


def _json(value: Any) -> bytes:
    # Text from a model may contain halves of surrogate pairs.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _array(array: NDArray[Any], dtype: np.dtype[Any]) -> bytes:
    if array.ndim != 1 or array.dtype != dtype:
        raise TypeError(f"an array is {array.dtype} of shape {array.shape}; expected {dtype} of shape (n,)")
    return array.astype(dtype, copy=False).tobytes()


def _from_bytes(content: Value, dtype: DTypeLike) -> NDArray[Any]:
    assert isinstance(content, bytes)
    return np.frombuffer(content, dtype)
