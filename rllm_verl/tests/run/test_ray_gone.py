"""Clusters that the backend starts: which addresses they use, and one error of ours if a process of Ray ends."""

from __future__ import annotations

import subprocess
import sys

import pytest
from expecting import check_values

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PROGRAM = """
import asyncio, os, signal, sys, threading, time
import psutil, ray
from rllm_core.errors import BackendError
from rllm_verl.cluster import Cluster
from rllm_verl.calls import Driver
from rllm_verl.processes import kill_workers

settings = {"num_cpus": 1, "num_gpus": 1, "include_dashboard": False, "object_store_memory": 100 << 20}
variables = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
driver = Driver(list, kill_workers)

def put_and_lose_the_daemon():
    while True:
        ray.put(b"x" * 1_000_000)
        daemon.kill()
        time.sleep(0.3)

def run(call, doing):
    return asyncio.run(driver.run(call, doing=doing, seconds=100, key="deadlines.update"))

run(lambda: Cluster.connect(settings, variables), "starting Ray")
sleep = ray.remote(lambda seconds: time.sleep(seconds))
run(lambda: ray.get(sleep.remote(0)), "waiting")
me = psutil.Process()
for process in [me, *me.children(recursive=True)]:
    try:
        connections = process.net_connections(kind="inet")
    except psutil.NoSuchProcess:
        continue  # it ended since it was listed
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN:
            print("listens", connection.laddr.ip, flush=True)
(daemon,) = [each for each in me.children() if each.name() == sys.argv[1]]
try:
    if "put" in sys.argv:
        run(put_and_lose_the_daemon, "updating the policy")
    threading.Timer(1, daemon.kill).start()
    run(lambda: ray.get(sleep.remote(600)), "updating the policy")
except BackendError as error:
    print("said:", error, flush=True)
os._exit(0)
"""


def run_and_print(*words: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, timeout=180)
    return done.stdout, done.stderr


def test_ended_ray_process_is_named() -> None:
    output, errors = run_and_print("gcs_server")
    check_values(output.partition("said:")[2] or errors, "updating the policy", "gcs_server (process ", "--resume")
    addresses = {line.split()[1] for line in output.splitlines() if line.startswith("listens")}
    assert addresses
    assert addresses <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


def test_ended_raylet_is_reported_before_ray_exits() -> None:
    """Ray's library then calls `_exit`. Whether our error is raised before is a matter of milliseconds."""
    check_values("".join(run_and_print("raylet", "put")), "raylet (process ", "--resume")
