"""Downloads without an API key: URLs that are signed, for a time, as the client's command line expects them."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote, urlencode

from rllm_tinker_server.checkpoint_files import ADAPTER_FILE, CONFIG_FILE
from rllm_tinker_server.checkpoints import EXTERNAL, Checkpoints, TinkerPath
from rllm_tinker_server.messages import RequestRefused
from rllm_tinker_server.owners import Owner
from rllm_tinker_server.refusals import Forbidden, NotFound

FILES = (CONFIG_FILE, ADAPTER_FILE)
"""Files of a checkpoint that other programs can read."""
VALID = 3600.0
"""Lifetime of a URL in seconds. The client requests new URLs five minutes before they expire."""


class Downloads:
    """Signs URLs and checks them. URLs of a server that has been restarted are not valid any more."""

    def __init__(self, checkpoints: Checkpoints, clock: Callable[[], float] = time.time) -> None:
        self._checkpoints = checkpoints
        self._clock = clock
        self._secret = secrets.token_bytes(32)

    def urls(self, path: TinkerPath, owner: Owner, base: str) -> tuple[dict[str, str], float]:
        """Return the files' URLs by name, and their expiry in seconds since the epoch.

        Args:
            path: path of a checkpoint for other programs.
            owner: holder of the key that requests the URLs. Anyone can use them, without a key.
            base: base URL of files as the client sees it, such as ``http://127.0.0.1:8017/api/v1/files``.

        Raises:
            RequestRefused: the checkpoint has a different kind.
            NotFound: the checkpoint does not exist.
        """
        if path.kind != EXTERNAL:
            raise RequestRefused(f"{path} cannot be downloaded. Export it with save_weights_external first.")
        self._checkpoints.get(path, owner)
        expires = int(self._clock() + VALID)
        urls = {}
        for name in FILES:
            signed = urlencode({"expires": expires, "signature": self._signature(path, name, expires)})
            urls[name] = f"{base}/{quote(path.model_id)}/{path.checkpoint_id}/{name}?{signed}"
        return urls, float(expires)

    def file(self, path: TinkerPath, name: str, query: Mapping[str, str]) -> Path:
        """Return the path of the file for a URL.

        Raises:
            Forbidden: this server did not sign the URL, or the URL has expired.
            NotFound: the checkpoint has been deleted.
        """
        expires = query.get("expires", "")
        right = expires.isdecimal() and len(expires) < 20
        if not right or not self._signed(path, name, query):
            raise Forbidden("This URL was not signed by this server. Ask for new ones.")
        if int(expires) < self._clock():
            raise Forbidden("This URL has expired. Ask for new ones.")
        file = self._checkpoints.directory(path) / name
        if not file.is_file():
            raise NotFound(f"{path} has no file {name}.")
        return file

    def _signed(self, path: TinkerPath, name: str, query: Mapping[str, str]) -> bool:
        right = self._signature(path, name, int(query["expires"]))
        return hmac.compare_digest(query.get("signature", "").encode(), right.encode())

    def _signature(self, path: TinkerPath, name: str, expires: int) -> str:
        return hmac.digest(self._secret, f"{path}\n{name}\n{expires}".encode(), "sha256").hex()
