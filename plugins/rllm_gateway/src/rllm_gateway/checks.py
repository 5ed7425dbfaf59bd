"""What is seen to be wrong with ``rllm.sdk`` before a model is loaded."""

from __future__ import annotations

import os
from pathlib import Path

from rllm_core.errors import ConfigError
from rllm_core.schema.sdk_section import ProxySection, SdkSection, StoreSection
from rllm_serving.listening import listen

LARGEST_PORT = 65535
RUN_PORT = 1
"""What a gateway's port for runs is more than that for agents, unless ``--run-port`` says otherwise."""


def check_sdk(sdk: SdkSection) -> None:
    """Look at the store and the ports, or at the gateway that runs already. Nothing is made.

    Raises:
        ConfigError: a key does not go with the mode, the store cannot be written, a port is taken, there is no token.
        BackendError: no gateway runs at the port, or it refuses the run.
    """
    if sdk.proxy.mode == "external":
        _check_external(sdk)
    else:
        _check_own(sdk)


def _check_own(sdk: SdkSection) -> None:
    if sdk.proxy.admin_token is not None:
        raise ConfigError(
            "unused-key",
            "rllm.sdk.proxy.admin_token is set, and the gateway of a run needs none: nothing attaches to it.",
            "Leave it out, or set rllm.sdk.proxy.mode=external.",
        )
    # The core looks at the run folder, where the store is unless the run names another.
    if sdk.store.path is not None:
        check_store(Path(sdk.store.path).expanduser(), "rllm.sdk.store.path")
    _check_port(sdk.proxy)


def check_serving(store: Path, host: str, port: int) -> None:
    """Look at the options of ``rllm gateway serve``. Nothing is made.

    Raises:
        ConfigError: the store cannot be written, or the port is taken.
    """
    check_store(store, "--store")
    try:
        listen(host, port).close()
    except ConfigError as error:
        raise ConfigError(error.code, error.message, "Give --port or --host another.") from error


def _check_external(sdk: SdkSection) -> None:
    from rllm_gateway.admin_token import TOKEN_FILE
    from rllm_gateway.attaching import probe

    proxy = sdk.proxy
    if sdk.store != StoreSection():
        raise ConfigError(
            "unused-key",
            "rllm.sdk.store.path is set, and rllm.sdk.proxy.mode is external: the gateway has a store of its own.",
            "Leave it out, and start the gateway with --store.",
        )
    if proxy.port == LARGEST_PORT:
        raise ConfigError(
            "port-unavailable",
            f"rllm.sdk.proxy.port is {LARGEST_PORT}, and runs attach at the next port.",
            "Choose a smaller one.",
        )
    if proxy.admin_token is None and not TOKEN_FILE.expanduser().exists():
        raise ConfigError(
            "missing-api-key",
            f"There is no admin token in {TOKEN_FILE}: no gateway has run for this user.",
            "Start one with `rllm gateway serve`, or set rllm.sdk.proxy.admin_token.",
        )
    probe(proxy.host, proxy.port + RUN_PORT, token_of(proxy))


def token_of(proxy: ProxySection) -> str:
    """The token to attach with: of the configuration, or of this user's file. Raises ConfigError: it cannot be read."""
    from rllm_gateway.admin_token import admin_token

    return admin_token() if proxy.admin_token is None else proxy.admin_token


def check_store(path: Path, option: str) -> None:
    """Read the pages of a store, or look at the place where it will be made. Nothing is made.

    Raises:
        ConfigError: the store is damaged, is something else, or cannot be written.
    """
    from rllm_gateway.calls import CallReader, StoreError

    if path.exists():
        try:
            with CallReader.open(path) as reader:
                reader.require_whole()
        except StoreError as error:
            raise ConfigError(error.code, error.message, f"Give {option} another file.") from error
    place = next(each for each in path.parents if each.exists())
    if not place.is_dir():
        raise ConfigError(
            "directory-not-found", f"{option} is {path}, and {place} is no folder.", "Give it a file that can be made."
        )
    # SQLite writes its log beside the store.
    for each in filter(Path.exists, (path, place)):
        if not os.access(each, os.W_OK, effective_ids=True):
            raise ConfigError(
                "not-writable",
                f"{option} is {path}, and you may not write {each}.",
                "Give it a file that you may write.",
            )


def _check_port(proxy: ProxySection) -> None:
    from rllm_gateway.child import listening_socket

    try:
        listening_socket(proxy.host, proxy.port).close()
    except ConfigError as error:
        raise ConfigError(
            error.code, error.message, "Set rllm.sdk.proxy.port or rllm.sdk.proxy.host to another."
        ) from error
