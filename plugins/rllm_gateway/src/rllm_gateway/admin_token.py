"""The token with which runs attach to a gateway.

It is stored in a file that only its owner can read. It is never passed on a command line.
"""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from rllm_core.errors import ConfigError
from rllm_core.files import open_to_read

TOKEN_FILE = Path("~/.rllm/gateway.token")
PRIVATE = 0o600


def admin_token(file: Path = TOKEN_FILE) -> str:
    """Return the token in a file. If the file does not exist, create it with a new token.

    Raises:
        ConfigError: the file cannot be read or created, is empty, or can be read by other users.
    """
    path = file.expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make(path)
        with open_to_read(path) as opened:
            mode = os.fstat(opened.fileno()).st_mode & 0o777
            token = opened.read().decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "file-unreadable",
            f"The admin token in {path} cannot be read: {error}.",
            "Correct the file's permissions, or use a different file with --token-file.",
        ) from error
    if mode & 0o077:
        raise ConfigError(
            "bad-admin-token", f"Other users may read the admin token in {path}.", f"Run: chmod 600 {path}"
        )
    if not token:
        raise ConfigError(
            "bad-admin-token",
            f"The file of the admin token, {path}, is empty.",
            f"Run: rm {path}. rllm then creates it with a new token.",
        )
    return token


def is_token(given: object, token: str) -> bool:
    """Compare two tokens in constant time. True if they are equal."""
    return isinstance(given, str) and hmac.compare_digest(given.encode(errors="replace"), token.encode())


def _make(path: Path) -> None:
    """Create the file with a new token.

    The token is written to a temporary file first, and then linked. So no process reads half a token, and if two
    processes create the file at the same time, one of them wins.
    """
    if path.exists():
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(secrets.token_urlsafe(32) + "\n")
        os.link(beside, path)
    except FileExistsError:
        return
    finally:
        beside.unlink()
