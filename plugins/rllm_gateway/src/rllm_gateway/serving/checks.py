"""Checks of ``rllm.sdk`` that run before a model is loaded."""

from __future__ import annotations

import os
from pathlib import Path

from rllm_core.errors import ConfigError
from rllm_core.schema.run_sections import ProxySection, SdkSection, StoreSection

LARGEST_PORT = 65535
RUN_PORT = 1
"""Offset of a gateway's port for runs from its port for agents, unless ``--run-port`` is set."""


def check_sdk(sdk: SdkSection) -> None:
    """Check the store and the ports, or the external gateway. No file is created.

    Raises:
        ConfigError: a key does not fit the mode, the store cannot be written, a port is in use, or there is no token.
        BackendError: no gateway runs at the port, or it rejects the run.
    """
    if sdk.proxy.mode == "external":
        _check_external(sdk)
    else:
        _check_own(sdk)


def _check_own(sdk: SdkSection) -> None:
    if sdk.proxy.admin_token is not None:
        raise ConfigError(
            "unused-key",
            "rllm.sdk.proxy.admin_token is set, but the run starts its own gateway, which has no admin token.",
            "Remove rllm.sdk.proxy.admin_token, or set rllm.sdk.proxy.mode=external.",
        )
    # The core checks the run directory, which contains the store unless rllm.sdk.store.path is set.
    if sdk.store.path is not None:
        check_store(Path(sdk.store.path).expanduser(), "rllm.sdk.store.path")
    _check_port(sdk.proxy)


def _check_external(sdk: SdkSection) -> None:
    from rllm_gateway.serving.attaching import TOKEN_FILE, probe

    proxy = sdk.proxy
    if sdk.store != StoreSection():
        raise ConfigError(
            "unused-key",
            "rllm.sdk.store.path is set, but with rllm.sdk.proxy.mode=external the gateway selects the store.",
            "Remove rllm.sdk.store.path, and start the gateway with `rllm gateway serve --store FILE`.",
        )
    if proxy.port == LARGEST_PORT:
        raise ConfigError(
            "port-unavailable",
            f"rllm.sdk.proxy.port is {LARGEST_PORT}, but runs attach at the next port, which does not exist.",
            f"Set rllm.sdk.proxy.port to a value below {LARGEST_PORT}.",
        )
    if proxy.admin_token is None and not TOKEN_FILE.expanduser().exists():
        raise ConfigError(
            "missing-api-key",
            f"{TOKEN_FILE}, the file with the admin token, does not exist. You have not started a gateway yet.",
            "Start a gateway with `rllm gateway serve`, or set rllm.sdk.proxy.admin_token.",
        )
    probe(proxy.host, proxy.port + RUN_PORT, token_of(proxy))


def token_of(proxy: ProxySection) -> str:
    """Return the token to attach with, from the configuration or from the user's file.

    Raises:
        ConfigError: the file cannot be read.
    """
    from rllm_gateway.serving.attaching import admin_token

    return admin_token() if proxy.admin_token is None else proxy.admin_token


def check_store(path: Path, option: str) -> None:
    """Read the pages of a store. If the store does not exist, check its directory. No file is created.

    Raises:
        ConfigError: the store is damaged, the file is not a store, or it cannot be written.
    """
    from rllm_gateway.calls import CallReader, StoreError

    if path.exists():
        try:
            with CallReader.open(path) as reader:
                reader.require_whole()
        except StoreError as error:
            raise ConfigError(error.code, error.message, f"Set {option} to a different file.") from error
    directory = next(each for each in path.parents if each.exists())
    if not directory.is_dir():
        raise ConfigError(
            "directory-not-found",
            f"{option} is {path}, but {directory} is not a directory.",
            f"Set {option} to a different file.",
        )
    # SQLite writes its log in the directory of the store.
    for each in filter(Path.exists, (path, directory)):
        if not os.access(each, os.W_OK, effective_ids=True):
            raise ConfigError(
                "not-writable",
                f"{option} is {path}, but you have no permission to write {each}.",
                f"Set {option} to a file that you may write.",
            )


def _check_port(proxy: ProxySection) -> None:
    from rllm_gateway.serving.child import listening_socket

    try:
        listening_socket(proxy.host, proxy.port).close()
    except ConfigError as error:
        raise ConfigError(
            error.code, error.message, "Set rllm.sdk.proxy.port or rllm.sdk.proxy.host to a different value."
        ) from error
