"""`StorePlace`: a directory in an object store, its local directories, and the errors of stores."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rllm_core.errors import ConfigError, RllmError
from rllm_core.notices import one_line

CACHE_VARIABLE = "RLLM_RUNS_CACHE"
"""Environment variable with the directory of local copies."""
_URL = re.compile(r"([a-z][a-z0-9+.-]+)://(.+)", re.DOTALL)
_LOCAL = ("file", "local")
_CONTAINERS = ("abfs", "abfss")
"""Kinds of URL that have the name of a container before `@`."""
_S3_KEYS = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_ENDPOINT_URL for a server other than AWS."
_CREDENTIALS = {
    "s3": _S3_KEYS,
    "s3a": _S3_KEYS,
    "gs": "Run: gcloud auth application-default login",
    "gcs": "Run: gcloud auth application-default login",
}
_NEW_BUCKET = {"s3": "aws s3 mb s3://", "s3a": "aws s3 mb s3://", "gs": "gcloud storage buckets create gs://"}


def is_url(text: str) -> bool:
    """Return True for a URL such as ``s3://bucket/runs``, and False for a path."""
    return _URL.fullmatch(text) is not None


def working_directory(url: str) -> Path:
    """Return the local directory in which a run with this URL works. It is the same for each start of the run.

    Raises:
        ConfigError: the URL has a part ``..``, or a user's name or password.
    """
    return _below(_cache() / "runs", url)


def reading_directory(url: str) -> Path:
    """Return the local directory with the copy that commands read. Raises the error of `working_directory`."""
    return _below(copies_directory(), url)


def copies_directory() -> Path:
    """Return the local directory with all copies that commands read."""
    return _cache() / "copies"


def _cache() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get(CACHE_VARIABLE) or f"{cache}/rllm").expanduser()


def _below(root: Path, url: str) -> Path:
    _check_has_no_user(url)
    match = _URL.fullmatch(url)
    if match is None or ".." in (parts := match[2].split("/")):
        raise ConfigError(
            "wrong-value", f"{url!r} is not the URL of a directory.", "Write it as s3://BUCKET/DIRECTORY."
        )
    return root.joinpath(match[1], *(quote(part, safe=" =+,") for part in parts if part not in ("", ".")))


@dataclass(frozen=True)
class StorePlace:
    """A directory in an object store. It exists if it contains an object."""

    url: str
    files: Any
    """File system of fsspec."""
    path: str
    """Path in this file system, without a slash at its end."""

    def object_path(self, name: str) -> str:
        """Return the path of an object below this directory."""
        return f"{self.path}/{name}"

    def objects(self) -> dict[str, Mapping[str, Any]]:
        """Return fsspec's info of all objects below this directory, by their relative names."""
        self.files.invalidate_cache()
        found = self.files.find(self.path, detail=True)
        start = len(self.path.strip("/")) + 1
        return {name.strip("/")[start:]: info for name, info in found.items()}

    def read(self, name: str) -> bytes | None:
        """Return the content of an object. None if it does not exist."""
        try:
            content: bytes = self.files.cat_file(self.object_path(name))
        except FileNotFoundError:
            return None
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write an object, or replace its content."""
        self.files.pipe_file(self.object_path(name), content)

    def remove(self, name: str) -> None:
        """Remove an object. It may be missing."""
        try:
            self.files.rm_file(self.object_path(name))
        except FileNotFoundError:
            return


def open_place(url: str) -> StorePlace:
    """Return the directory of a URL. It makes no connection.

    Raises:
        RllmError: fsspec, or its package for this kind of store, is not installed.
        ConfigError: fsspec has no such kind of store, or the URL has a user's name or password.
    """
    _check_has_no_user(url)
    scheme = url.partition("://")[0]
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]

        options = {"auto_mkdir": True} if scheme in _LOCAL else {}
        files, path = url_to_fs(url.rstrip("/"), use_listings_cache=False, **options)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        raise _missing_package(url, missing, "rllm[store]" if missing == "fsspec" else missing) from error
    except ImportError as error:  # fsspec's own message: "Install s3fs to access S3"
        from fsspec.registry import known_implementations  # type: ignore[import-untyped]

        package = known_implementations[scheme]["class"].partition(".")[0]
        raise _missing_package(url, package, package) from error
    except ValueError as error:
        raise ConfigError(
            "wrong-value",
            f"{url} cannot be used: {one_line(str(error))}.",
            "Use a kind of store that fsspec supports, such as s3:// or gs://, or the path of a directory.",
        ) from error
    return StorePlace(url.rstrip("/"), files, path.rstrip("/"))


def _check_has_no_user(url: str) -> None:
    scheme, _, path = url.partition("://")
    _, at, host = path.partition("/")[0].rpartition("@")
    if at and scheme not in _CONTAINERS:
        raise ConfigError(
            "wrong-value",
            f"A URL with a user's name or password, such as {scheme}://…@{host}, is not allowed: runs store it.",
            "Remove it, and set the environment variables of the package for this store, or a file in "
            "~/.config/fsspec/.",
        )


def _missing_package(url: str, package: str, requirement: str) -> RllmError:
    return RllmError("missing-package", f"{url} needs {package}.", f"Run: pip install '{requirement}'")


@contextmanager
def explain_failures(url: str, doing: str) -> Iterator[None]:
    """Turn the exceptions of a store into an error with the next action.

    Args:
        url: URL of the directory.
        doing: `read` or `written`.
    """
    try:
        yield
    except RllmError:
        raise
    except Exception as error:  # each library of a store has its own exceptions
        raise store_error(url, doing, error) from error


def store_error(url: str, doing: str, error: Exception) -> RllmError:
    """Return the error of a store that could not be read or written."""
    scheme, _, path = url.partition("://")
    bucket = path.partition("/")[0]
    if isinstance(error, FileNotFoundError):
        hint = f"Create it: {_NEW_BUCKET[scheme]}{bucket}" if scheme in _NEW_BUCKET else "Create its bucket"
        hint += ", or correct the URL."
    elif isinstance(error, PermissionError) or "Credential" in type(error).__name__:
        hint = _CREDENTIALS.get(scheme, f"Set the credentials that fsspec reads for {scheme}://.")
    else:
        server = "AWS_ENDPOINT_URL and " if scheme in ("s3", "s3a") else ""
        hint = f"Check {server}the network, then repeat the command."
    return RllmError("service-unreachable", f"{url} cannot be {doing}: {describe_failure(error)}.", hint)


def describe_failure(error: Exception) -> str:
    """Return a short text of a store's exception."""
    return one_line(str(error) or type(error).__name__, 120).rstrip(".")
