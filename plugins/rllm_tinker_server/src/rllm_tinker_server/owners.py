"""Owners: each API key owns the sessions, models, samplers, results and checkpoints that it makes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from rllm_serving.middleware import ACCEPTED


@dataclass(frozen=True)
class Owner:
    """The holder of an API key. Only a hash of the key is stored."""

    name: str
    is_only: bool = False
    """True if the server accepts no other key. This owner has all checkpoints of the directory, also of other keys."""

    def owns(self, name: str | None) -> bool:
        """True if objects with this name of an owner belong to this one. Earlier checkpoints have the name None."""
        return self.is_only or self.name == name


NOBODY = Owner("")
"""Owner of requests that need no key. It owns nothing."""


def owner_of(key: bytes, keys: Collection[str]) -> Owner:
    """Return the owner for an accepted key. `keys` are the server's keys. Without any, the server accepts every key."""
    return Owner(hashlib.sha256(b"rllm-tinker-server:" + key).hexdigest(), is_only=len(set(keys)) == 1)


OWNER = "rllm.owner"
"""Entry of a request's scope with its owner."""


class FindOwner:
    """Middleware that adds a request's owner to its scope."""

    def __init__(self, app: ASGIApp, keys: Collection[str]) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = scope.get(ACCEPTED)
        scope[OWNER] = NOBODY if key is None else owner_of(key, self._keys)
        await self._app(scope, receive, send)
