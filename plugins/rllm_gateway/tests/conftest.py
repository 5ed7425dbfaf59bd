"""A gateway for the tests of a module, and HTTP clients that are made quickly."""

from __future__ import annotations

import functools
import ssl
from collections.abc import Iterator

import pytest
from gateway_world import World, running

one_context = functools.cache(ssl.create_default_context)


@pytest.fixture(scope="module", autouse=True)
def _one_tls_context() -> Iterator[None]:
    """Read the certificates once. Each client would read them, and no test uses them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", one_context)
        yield


@pytest.fixture(scope="module")
def running_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(tmp_path_factory.mktemp("gateway")) as world:
        yield world


@pytest.fixture
def world(running_gateway: World) -> World:
    """Return the module's gateway with an unused policy. Its store has sessions of earlier tests."""
    running_gateway.policy.reset()
    return running_gateway
