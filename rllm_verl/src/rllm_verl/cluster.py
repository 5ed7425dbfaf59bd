"""The Ray cluster of a run: one of its own on this machine, or one that is there already."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray

from rllm_core.errors import BackendError, ConfigError

REACH_SECONDS = 5.0
"""How long a cluster's address may take to answer."""
ANY_CLUSTER = ("auto", "local")


@dataclass(frozen=True)
class Wanted:
    """The GPUs that a run asks for; on a CPU Ray counts logical ones."""

    per_node: int
    nodes: int


class Cluster:
    """Connected to Ray. `close` ends what was begun here and nothing else."""

    def __init__(self, *, owned: bool) -> None:
        self._owned = owned

    @classmethod
    def connect(cls, ray_init: Mapping[str, Any], environment: Mapping[str, str]) -> Cluster:
        """Join the cluster of this process, the one at ``address``, or start one.

        Args:
            ray_init: arguments of `ray.init` (``ray_kwargs.ray_init``).
            environment: variables of all worker processes.

        Raises:
            BackendError: nothing answers at the address, or Ray refuses to start.
        """
        if ray.is_initialized():
            return cls(owned=False)
        arguments = {name: value for name, value in ray_init.items() if value is not None}
        address = arguments.get("address") or os.environ.get("RAY_ADDRESS")
        if address:
            _require_answer(address)
        runtime = {name: value for name, value in (arguments.pop("runtime_env", None) or {}).items() if value}
        runtime["env_vars"] = {**environment, **(runtime.get("env_vars") or {})}
        # Ray would repeat every line that a worker prints on the terminal. They are in its log files, and errors
        # show their end.
        arguments = {"log_to_driver": False, "logging_level": "ERROR", **arguments}
        try:
            ray.init(runtime_env=runtime, **arguments)
        except (ConnectionError, OSError, RuntimeError, ValueError, TypeError) as error:
            where = f"no Ray cluster can be joined at {address}" if address else "Ray cannot be started here"
            raise BackendError(
                f"{where[0].upper()}{where[1:]}: {' '.join(str(error).split())[:300]}",
                "Look at ray_kwargs.ray_init; `ray status` shows a cluster.",
            ) from error
        return cls(owned=True)

    def check(self, wanted: Wanted) -> None:
        """Raise ConfigError when the nodes do not have the GPUs of a run. verl would wait for them without end."""
        nodes = [node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"]]
        fitting = [count for count in nodes if count >= wanted.per_node]
        if len(fitting) < wanted.nodes:
            found = ", ".join(f"{count:g}" for count in sorted(nodes, reverse=True))
            raise ConfigError(
                f"trainer.nnodes={wanted.nodes} and trainer.n_gpus_per_node={wanted.per_node} ask for "
                f"{wanted.nodes * wanted.per_node} GPUs; the Ray cluster has {found or 'none'} (by node).",
                "Ask for fewer, or start Ray on more nodes. Without a GPU: --profile cpu.",
            )

    def close(self) -> None:
        """End the cluster where it was started here; leave another as it is."""
        if self._owned and ray.is_initialized():
            ray.shutdown()


def _require_answer(address: str) -> None:
    """`ray.init` tries an address that nobody listens at for minutes."""
    if address in ANY_CLUSTER:
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        number = int(port)
    except ValueError:
        raise ConfigError(
            f"ray_kwargs.ray_init.address={address!r} is no address of a Ray cluster.", "Write HOST:PORT, or auto."
        ) from None
    try:
        socket.create_connection((host.strip("[]"), number), timeout=REACH_SECONDS).close()
    except OSError as error:
        raise BackendError(
            f"No Ray cluster answers at {address} ({error.strerror or error}).",
            "Start one with `ray start --head`, look with `ray status`, or leave ray_kwargs.ray_init.address out.",
        ) from error
