"""TLS contexts made ahead of agents, which fork from this process.

An HTTP client reads a file of certificates when it is made, also for addresses without TLS: 15 ms of a core, more than
all else that starts an agent. What a client made in the warm-up is made some times more; a fork's first calls with the
same arguments and environment get these. Each fork has its own copies.
"""

from __future__ import annotations

import functools
import os
import ssl
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

COPIES = 4
"""Clients of an agent that are spared it."""
ENVIRONMENT = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")
MAKERS = (("httpcore2", "default_ssl_context"), ("ssl", "create_default_context"))
"""Functions that make contexts, those first that call others."""


def warm_up_with_contexts(warm_up: Callable[[], None]) -> None:
    """Call `warm_up`, and keep contexts like those that were made in it for the forks of this process."""
    warm_up()  # clients import what makes their contexts when they make the first one
    makers = [_Maker(sys.modules[module], name) for module, name in MAKERS if module in sys.modules]
    warm_up()
    for maker in makers:
        maker.make_ahead()


class _Maker:
    """Stands for a function that makes contexts."""

    def __init__(self, module: ModuleType, name: str) -> None:
        self._module, self._name = module, name
        self._make = getattr(module, name)
        self._class = ssl.SSLContext
        self._asked: dict[Any, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._ready: dict[Any, list[Any]] = {}
        setattr(module, name, functools.wraps(self._make)(lambda *given, **named: self(given, named)))

    def __call__(self, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        key = (given, *sorted(named.items()), *map(os.environ.get, ENVIRONMENT))
        ready = self._ready.get(key)
        # Whoever has put another class in its place wants contexts of that.
        if ready and ssl.SSLContext is self._class:
            return ready.pop()
        if ready is None:
            self._asked[key] = (given, named)
        return self._make(*given, **named)

    def make_ahead(self) -> None:
        """Make what was asked for once more; where nothing was, the function is itself again."""
        if not self._asked:
            setattr(self._module, self._name, self._make)
        for key, (given, named) in self._asked.items():
            self._ready[key] = [self._make(*given, **named) for _ in range(COPIES)]
