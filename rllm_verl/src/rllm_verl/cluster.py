"""The Ray cluster of a run, started on this machine or already running, and the watch over its processes."""

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
    """Looks from a thread, from its making to `stop`."""

    def __init__(self, find_end: Callable[[], str | None], tell: Callable[[str], None]) -> None:
        """Begin to look.

        Args:
            find_end: says what has ended, as `processes.dead_daemon` does.
            tell: gets that, once.
        """
        self._find_end = find_end
        self._tell = tell
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="rllm-verl-daemons", daemon=True)
        self._thread.start()
        # Before Ray's own, which was registered earlier and ends its processes.
        atexit.register(self.stop)

    def stop(self) -> None:
        """Look no more: Ray is about to be ended."""
        atexit.unregister(self.stop)
        self._stopped.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            if (gone := self._find_end()) is not None:
                self._tell(gone)
                return


REACH_SECONDS = 5.0
"""How long a cluster's address may take to answer."""
CPUS_PER_GPU_APART = 2
"""What verl reserves where a rollout server has a separate GPU."""
NEW = "local"
"""Address of a cluster that `ray.init` starts itself."""
OF_A_NEW_CLUSTER = ("num_cpus", "num_gpus", "resources", "object_store_memory", "include_dashboard")
"""Arguments that Ray refuses where a cluster is there already; its nodes have what they were started with."""


@dataclass(frozen=True)
class Wanted:
    """The GPUs that a run asks for; on a CPU Ray counts logical ones."""

    per_node: int
    nodes: int
    apart: int = 0
    """GPUs of rollout servers alone, on any nodes."""


class Cluster:
    """Connected to Ray. `close` ends what was begun here and nothing else."""

    def __init__(self, *, owned: bool) -> None:
        self.owned = owned
        """Whether this program's connection to Ray was made here."""
        self._watch = DaemonWatch(dead_daemon, _tell_end) if owned else None

    @classmethod
    def connect(
        cls, ray_init: Mapping[str, Any], environment: Mapping[str, str], suggested: Mapping[str, str] | None = None
    ) -> Cluster:
        """Join the cluster of this process, the one at ``address``, or start one that listens on loopback alone.

        Args:
            ray_init: arguments of `ray.init` (``ray_kwargs.ray_init``). ``_node_ip_address`` is where a new cluster is
                to listen instead.
            environment: variables that all worker processes need.
            suggested: further ones, beneath these.

        Raises:
            BackendError: nothing answers at the address, or Ray refuses to start.
        """
        if ray.is_initialized():
            _require_environment(environment)
            return cls(owned=False)
        arguments = {name: value for name, value in ray_init.items() if value is not None}
        # Unless it is asked to, Ray would join whatever cluster it finds on this machine.
        address = arguments.setdefault("address", os.environ.get("RAY_ADDRESS") or NEW)
        if address != NEW:
            _require_answer(address)
            arguments = {name: value for name, value in arguments.items() if name not in OF_A_NEW_CLUSTER}
        runtime = {name: value for name, value in (arguments.pop("runtime_env", None) or {}).items() if value}
        runtime["env_vars"] = {**(suggested or {}), **environment, **(runtime.get("env_vars") or {})}
        # Ray would repeat every line that a worker prints on the terminal. They are in its log files, and errors
        # show their end.
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
                "Look at ray_kwargs.ray_init; `ray status` shows a cluster.",
            ) from error
        return cls(owned=True)

    def check(self, wanted: Wanted) -> None:
        """Raise ConfigError when the nodes do not have the GPUs of a run. verl would wait for them without end."""
        resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        nodes = [each.get("GPU", 0) for each in resources]
        fitting = [count for count in nodes if count >= wanted.per_node]
        if len(fitting) < wanted.nodes:
            found = ", ".join(f"{count:g}" for count in sorted(nodes, reverse=True))
            raise ConfigError(
                "too-few-gpus",
                f"trainer.nnodes={wanted.nodes} and trainer.n_gpus_per_node={wanted.per_node} ask for "
                f"{wanted.nodes * wanted.per_node} GPUs; the Ray cluster has {found or 'none'} (by node).",
                "Ask for fewer, or start Ray on more nodes. Without a GPU: --profile cpu.",
            )
        self._check_servers(wanted, sum(nodes), sum(each.get("CPU", 0) for each in resources))
        enough = sum(each.get("CPU", 0) >= wanted.per_node for each in resources)
        if enough < wanted.nodes:
            raise ConfigError(
                "too-few-cpus",
                f"Ray reserves one CPU per worker: {wanted.nodes} nodes must have {wanted.per_node} each, {enough} do.",
                "Start Ray with more: --num-cpus of `ray start`, or ray_kwargs.ray_init.num_cpus.",
            )

    def _check_servers(self, wanted: Wanted, gpus: float, cpus: float) -> None:
        workers = wanted.nodes * wanted.per_node
        if wanted.apart and workers + wanted.apart > gpus:
            raise ConfigError(
                "too-few-gpus",
                f"actor_rollout_ref.rollout.nnodes and n_gpus_per_node ask for {wanted.apart} GPUs beside "
                f"the {workers} that train; the Ray cluster has {gpus:g}.",
                "Ask for fewer, or start Ray on more nodes.",
            )
        if wanted.apart and workers + CPUS_PER_GPU_APART * wanted.apart > cpus:
            raise ConfigError(
                "too-few-cpus",
                f"Ray reserves one CPU per worker, and two per GPU of a rollout server: the run needs "
                f"{workers + CPUS_PER_GPU_APART * wanted.apart}, and the cluster has {cpus:g}.",
                "Start Ray with more: --num-cpus of `ray start`, or ray_kwargs.ray_init.num_cpus.",
            )

    def close(self) -> None:
        """End the cluster where it was started here; leave another as it is."""
        if self._watch is not None:
            self._watch.stop()
        if self.owned and ray.is_initialized():
            ray.shutdown()


def _tell_end(daemon: str) -> None:
    warn_once(
        f"Ray is gone: its {daemon} ended, and the run ends with it. Go on from the newest checkpoint with --resume."
    )


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Let `ray.init` give its node the address 127.0.0.1; all processes of the cluster then listen there.

    Ray does so by itself on macOS and Windows. As an argument it would replace this address by the machine's own.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _require_environment(environment: Mapping[str, str]) -> None:
    """Workers have the environment that this program gave to `ray.init`, which was before we could give ours."""
    there = (ray.get_runtime_context().runtime_env or {}).get("env_vars") or {}
    missing = {name: value for name, value in environment.items() if there.get(name) != value}
    if missing:
        raise ConfigError(
            "ray-environment",
            "This program started Ray without environment variables that the workers need: "
            f"{', '.join(f'{name}={value}' for name, value in missing.items())}.",
            "Give them to ray.init as runtime_env={'env_vars': {…}}, or leave ray.init to the backend.",
        )


def _require_answer(address: str) -> None:
    """`ray.init` tries an address that nobody listens at for minutes."""
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
            "Start one with `ray start --head`, look with `ray status`, or leave ray_kwargs.ray_init.address out.",
        ) from error
