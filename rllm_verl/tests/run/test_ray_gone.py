"""Ray itself ends under a run: one error of ours says so, instead of a minute's wait and the end of the program."""

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
from rllm_verl.deadlines import Driver
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
(daemon,) = [each for each in psutil.Process().children() if each.name() == sys.argv[1]]
try:
    if "put" in sys.argv:
        run(put_and_lose_the_daemon, "updating the policy")
    threading.Timer(1, daemon.kill).start()
    run(lambda: ray.get(sleep.remote(600)), "updating the policy")
except BackendError as error:
    print("said:", error, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("daemon", ["raylet", pytest.param("gcs_server", marks=pytest.mark.long)])
def test_a_process_of_ray_that_ends_is_told_by_name(daemon: str) -> None:
    command = [sys.executable, "-c", PROGRAM, daemon]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout.partition("said:")[2]
    check_values(said, "updating the policy", f"{daemon} (process ", "--resume")


@pytest.mark.long
def test_a_raylet_that_ends_is_told_although_ray_ends_the_program_at_its_next_write() -> None:
    """Ray's library then calls `_exit`. Whether our error is raised before is a matter of milliseconds."""
    command = [sys.executable, "-c", PROGRAM, "raylet", "put"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    told = done.stdout + done.stderr
    check_values(told, "raylet (process ", "--resume")
