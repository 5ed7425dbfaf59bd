"""A run's Ray cluster, started on this machine or already running, and a watch on its processes."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray._private import ray_constants

from rllm_core.errors import BackendError, ConfigError
from rllm_core.notices import warn_once
from rllm_verl.processes import dead_daemon

LOOK_SECONDS = 0.02


class DaemonWatch:
    """A thread that checks Ray's processes until `stop`."""

    def __init__(self, find_end: Callable[[], str | None], notify: Callable[[str], None]) -> None:
        """Start the thread.

        Args:
            find_end: returns the name of a process that has ended, like `processes.dead_daemon`.
            notify: receives this name once.
        """
        self._find_end = find_end
        self._notify = notify
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="rllm-verl-daemons", daemon=True)
        self._thread.start()
        # This handler runs before Ray's, which was registered earlier and stops Ray's processes.
        atexit.register(self.stop)

    def stop(self) -> None:
        """Stop the thread, because Ray is about to be stopped."""
        atexit.unregister(self.stop)
        self._stopped.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            if (gone := self._find_end()) is not None:
                self._notify(gone)
                return


REACH_SECONDS = 5.0
"""Time limit in seconds for a connection to the cluster's address."""
CPUS_PER_ROLLOUT_GPU = 2
"""CPUs that verl reserves for each separate GPU of a rollout server."""
NEW = "local"
"""The address with which `ray.init` starts a new cluster."""
NEW_CLUSTER_ARGUMENTS = ("num_cpus", "num_gpus", "resources", "object_store_memory", "include_dashboard")
"""Arguments that Ray rejects for a running cluster. They are fixed when its nodes start."""


@dataclass(frozen=True)
class RequiredGpus:
    """The GPUs that a run needs. On a CPU, Ray counts logical GPUs."""

    per_node: int
    nodes: int
    rollout: int = 0
    """Separate GPUs of rollout servers, on any nodes."""


class Cluster:
    """A connection to Ray. `close` stops only the cluster that this object started."""

    def __init__(self, *, owned: bool) -> None:
        self.owned = owned
        """True if this object made the program's connection to Ray."""
        self._watch = DaemonWatch(dead_daemon, _warn_of_end) if owned else None

    @classmethod
    def connect(
        cls, ray_init: Mapping[str, Any], environment: Mapping[str, str], suggested: Mapping[str, str] | None = None
    ) -> Cluster:
        """Join this process's cluster or the cluster at ``address``, or start one that listens only on loopback.

        Args:
            ray_init: arguments of `ray.init` (``ray_kwargs.ray_init``). ``_node_ip_address`` makes a new cluster listen
                on that address instead.
            environment: variables that all worker processes need.
            suggested: more variables. A variable in `environment` overrides one with the same name.

        Raises:
            BackendError: no cluster answers at the address, or Ray fails to start.
        """
        if ray.is_initialized():
            _require_environment(environment)
            return cls(owned=False)
        arguments = {name: value for name, value in ray_init.items() if value is not None}
        # Without an address, Ray would join any cluster that it finds on this machine.
        address = arguments.setdefault("address", os.environ.get("RAY_ADDRESS") or NEW)
        if address != NEW:
            _require_answer(address)
            arguments = {name: value for name, value in arguments.items() if name not in NEW_CLUSTER_ARGUMENTS}
        runtime = {name: value for name, value in (arguments.pop("runtime_env", None) or {}).items() if value}
        runtime["env_vars"] = {**(suggested or {}), **environment, **(runtime.get("env_vars") or {})}
        # By default Ray prints every line of a worker on the terminal. The lines are also in its log files, and errors
        # show the last ones.
        arguments = {"log_to_driver": False, "logging_level": "ERROR", **arguments}
        loopback = address == NEW and "_node_ip_address" not in arguments
        try:
            with _on_loopback() if loopback else contextlib.nullcontext():
                ray.init(runtime_env=runtime, **arguments)
        except (ConnectionError, OSError, RuntimeError, ValueError, TypeError) as error:
            where = "Ray cannot be started here" if address == NEW else f"no Ray cluster can be joined at {address}"
            raise BackendError(
                "process-not-started",
                f"{where[0].upper()}{where[1:]}: {' '.join(str(error).split())[:300]}",
                "Check ray_kwargs.ray_init. `ray status` shows a running cluster.",
            ) from error
        return cls(owned=True)

    def check(self, required: RequiredGpus) -> None:
        """Raise ConfigError if the nodes lack GPUs or CPUs for the run. verl would wait for them indefinitely."""
        resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        nodes = [each.get("GPU", 0) for each in resources]
        fitting = [count for count in nodes if count >= required.per_node]
        if len(fitting) < required.nodes:
            found = ", ".join(f"{count:g}" for count in sorted(nodes, reverse=True))
            raise ConfigError(
                "too-few-gpus",
                f"trainer.nnodes={required.nodes} and trainer.n_gpus_per_node={required.per_node} need "
                f"{required.nodes * required.per_node} GPUs, but the Ray cluster has {found or 'none'} (by node).",
                "Lower trainer.nnodes or trainer.n_gpus_per_node, or start Ray on more nodes. Without a GPU, use "
                "--profile cpu.",
            )
        self._check_servers(required, sum(nodes), sum(each.get("CPU", 0) for each in resources))
        enough = sum(each.get("CPU", 0) >= required.per_node for each in resources)
        if enough < required.nodes:
            raise ConfigError(
                "too-few-cpus",
                f"Ray reserves one CPU per worker. {required.nodes} nodes need {required.per_node} CPUs each, but only "
                f"{enough} nodes have them.",
                "Start Ray with more CPUs: `ray start --num-cpus N`, or ray_kwargs.ray_init.num_cpus=N.",
            )

    def _check_servers(self, required: RequiredGpus, gpus: float, cpus: float) -> None:
        workers = required.nodes * required.per_node
        if required.rollout and workers + required.rollout > gpus:
            raise ConfigError(
                "too-few-gpus",
                f"actor_rollout_ref.rollout.nnodes and n_gpus_per_node need {required.rollout} GPUs in addition to "
                f"{workers} training GPUs, but the Ray cluster has {gpus:g}.",
                "Lower actor_rollout_ref.rollout.nnodes or n_gpus_per_node, or start Ray on more nodes.",
            )
        if required.rollout and workers + CPUS_PER_ROLLOUT_GPU * required.rollout > cpus:
            raise ConfigError(
                "too-few-cpus",
                f"Ray reserves one CPU per worker and two per rollout server GPU. The run needs "
                f"{workers + CPUS_PER_ROLLOUT_GPU * required.rollout} CPUs, but the cluster has {cpus:g}.",
                "Start Ray with more CPUs: `ray start --num-cpus N`, or ray_kwargs.ray_init.num_cpus=N.",
            )

    def close(self) -> None:
        """Disconnect from Ray if this object connected to it. This stops a cluster only if it was started here."""
        if self._watch is not None:
            self._watch.stop()
        if self.owned and ray.is_initialized():
            ray.shutdown()


def _warn_of_end(daemon: str) -> None:
    warn_once(
        f"Ray stopped, because its {daemon} ended, so the run stops too. Run the same command with --resume to "
        "continue from the newest checkpoint."
    )


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Make `ray.init` give its node the address 127.0.0.1, so that all processes of the cluster listen only there.

    Ray does this itself on macOS and Windows. If 127.0.0.1 is passed as an argument, Ray replaces it with the machine's
    own address.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _require_environment(environment: Mapping[str, str]) -> None:
    """Raise ConfigError if the program called `ray.init` before, without variables that the workers need."""
    there = (ray.get_runtime_context().runtime_env or {}).get("env_vars") or {}
    missing = {name: value for name, value in environment.items() if there.get(name) != value}
    if missing:
        raise ConfigError(
            "ray-environment",
            "This program started Ray without environment variables that the workers need: "
            f"{', '.join(f'{name}={value}' for name, value in missing.items())}.",
            "Pass them to ray.init as runtime_env={'env_vars': {…}}, or let the backend call ray.init.",
        )


def _require_answer(address: str) -> None:
    """Raise an error if no server listens at the address. `ray.init` would retry for minutes."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        number = int(port)
    except ValueError:
        raise ConfigError(
            "bad-address",
            f"ray_kwargs.ray_init.address={address!r} is not an address of a Ray cluster.",
            "Write HOST:PORT, or auto.",
        ) from None
    try:
        socket.create_connection((host.strip("[]"), number), timeout=REACH_SECONDS).close()
    except OSError as error:
        raise BackendError(
            "no-ray-cluster",
            f"No Ray cluster answers at {address} ({error.strerror or error}).",
            "Start a cluster with `ray start --head`, check it with `ray status`, or remove "
            "ray_kwargs.ray_init.address.",
        ) from error
