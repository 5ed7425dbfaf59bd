"""Connecting to Ray: what can be wrong is said at once, and not after minutes."""

from __future__ import annotations

import socket

import pytest
import ray
from expecting import expect_error

from rllm_core.errors import BackendError, ConfigError
from rllm_verl.cluster import Cluster, RequiredGpus


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that has not started Ray; other tests of this process may have."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)


@pytest.mark.usefixtures("no_ray")
def test_an_address_where_nobody_listens_is_refused() -> None:
    """Ray itself would retry for minutes."""
    address = f"127.0.0.1:{free_port()}"
    with expect_error(BackendError, "no-ray-cluster", address, "ray start --head"):
        Cluster.connect({"address": address}, {})


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:port"])
def test_an_address_without_a_port_is_refused(address: str) -> None:
    with expect_error(ConfigError, "bad-address", address, "HOST:PORT"):
        Cluster.connect({"address": address}, {})


@pytest.mark.usefixtures("no_ray")
def test_arguments_that_ray_does_not_know_are_named() -> None:
    with expect_error(BackendError, "process-not-started", "num_gpu"):
        Cluster.connect({"num_gpu": 1}, {})


@pytest.mark.long
@pytest.mark.usefixtures("ray_cluster")
class TestOnACluster:
    def test_existing_cluster_of_process_is_used_unchanged(self) -> None:
        cluster = Cluster.connect({"num_cpus": 1}, {})
        cluster.close()
        assert ray.is_initialized()

    @pytest.mark.parametrize(("per_node", "nodes"), [(3, 1), (1, 2), (2, 2)])
    def test_too_few_gpus_fail_with_both_numbers(self, per_node: int, nodes: int) -> None:
        values = (f"{per_node * nodes} GPUs", "2 (by node)", "--profile cpu")
        with expect_error(ConfigError, "too-few-gpus", *values):
            Cluster.connect({}, {}).check(RequiredGpus(per_node=per_node, nodes=nodes))

    def test_as_many_as_there_are_are_taken(self) -> None:
        Cluster.connect({}, {}).check(RequiredGpus(per_node=2, nodes=1))

    def test_more_workers_than_ray_counts_cpus_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        node = {"Alive": True, "Resources": {"GPU": 4.0, "CPU": 2.0}}
        monkeypatch.setattr(ray, "nodes", lambda: [node])
        with expect_error(
            ConfigError, "too-few-cpus", "1 nodes need 4 CPUs each, but only 0 nodes have them", "--num-cpus"
        ):
            Cluster.connect({}, {}).check(RequiredGpus(per_node=4, nodes=1))

    @pytest.mark.parametrize(
        ("resources", "code", "values"),
        [
            ({"GPU": 2.0, "CPU": 16.0}, "too-few-gpus", ["actor_rollout_ref.rollout.nnodes", "2 GPUs"]),
            ({"GPU": 3.0, "CPU": 4.0}, "too-few-cpus", [5, 4, "--num-cpus"]),
        ],
    )
    def test_missing_gpus_for_servers_are_an_error(
        self, monkeypatch: pytest.MonkeyPatch, resources: dict[str, float], code: str, values: list[object]
    ) -> None:
        monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": resources}])
        with expect_error(ConfigError, code, *values):
            Cluster.connect({}, {}).check(RequiredGpus(per_node=1, nodes=1, rollout=2))

    def test_cluster_without_needed_variable_is_an_error(self) -> None:
        with expect_error(ConfigError, "ray-environment", "NEEDED=x"):
            Cluster.connect({}, {"OMP_NUM_THREADS": "1", "NEEDED": "x"})
