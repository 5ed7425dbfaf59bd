"""The tables of a store, and their version."""

from __future__ import annotations

from collections.abc import Mapping

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
