"""The token by which runs attach to a gateway. It is in a file that only its owner reads, never on a command line."""

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
    """The token in a file, which is made with a new one if it is not there.

    Raises:
        ConfigError: it cannot be read or made, is empty, or others may read it.
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
            "file-unreadable", f"The admin token in {path} cannot be read: {error}.", "Choose another file."
        ) from error
    if mode & 0o077:
        raise ConfigError("bad-admin-token", f"Others may read the admin token in {path}.", f"Run: chmod 600 {path}")
    if not token:
        raise ConfigError(
            "bad-admin-token", f"The file of the admin token, {path}, is empty.", "Delete it, so that one is made."
        )
    return token


def is_token(given: object, token: str) -> bool:
    """Takes the same time whatever is given."""
    return isinstance(given, str) and hmac.compare_digest(given.encode(errors="replace"), token.encode())


def _make(path: Path) -> None:
    """Write a token beside and link it: whoever sees the file sees all of it, and of two makers one wins."""
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
