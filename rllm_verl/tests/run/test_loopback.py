"""A cluster that the backend starts: who can reach it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PROGRAM = """
import psutil, ray
from rllm_verl.cluster import Cluster
settings = {"num_cpus": 1, "num_gpus": 1, "include_dashboard": False, "object_store_memory": 100 << 20}
cluster = Cluster.connect(settings, {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"})
ray.get(ray.remote(lambda: None).remote())
me = psutil.Process()
for process in [me, *me.children(recursive=True)]:
    try:
        connections = process.net_connections(kind="inet")
    except psutil.NoSuchProcess:
        continue  # it ended since it was listed
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN:
            print("listens", connection.laddr.ip)
cluster.close()
"""


def test_our_own_cluster_listens_only_on_loopback() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    addresses = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("listens")}
    assert addresses
    assert addresses <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
