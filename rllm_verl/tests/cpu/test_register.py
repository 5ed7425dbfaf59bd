"""What verl becomes where ``VERL_PLATFORM=cpu``, and that it stays as it is everywhere else. In fresh processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

DEADLINE = 100

WITHOUT = """
import json, sys
import rllm_verl.cpu.server
of_server = set(sys.modules)
import verl
from verl.plugin.platform import PlatformRegistry
print(json.dumps({
    "server": sorted({name.partition(".")[0] for name in of_server} & {"verl", "ray", "vllm", "tensordict"}),
    "platforms": PlatformRegistry.registered_names(),
    "ours": sorted(name for name in set(sys.modules) - of_server if name.startswith("rllm_verl.cpu.")),
}))
"""

WITH = """
import json, os
import torch
import verl
from types import SimpleNamespace
from verl.plugin.platform import get_platform, platform_manager
from verl.utils import distributed
from verl.utils.device import get_torch_device
from verl.workers.engine.base import EngineRegistry
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.replica import RolloutReplicaRegistry

facts = {"platform": get_platform().device_name}
del os.environ["VERL_PLATFORM"]
facts["guessed"] = platform_manager._detect_platform_name()
os.environ["VERL_PLATFORM"] = "cpu"
try:
    EngineRegistry.new("language_model", "fsdp", model_config=None, engine_config=SimpleNamespace(strategy="fsdp"))
except Exception as error:
    facts["fsdp1"] = f"{type(error).__name__}: {error}"
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
try:
    torch.distributed.init_process_group("cpu:gloo,cpu:gloo", rank=0, world_size=1)
except ValueError as error:
    facts["group of verl"] = str(error)
distributed.initialize_global_process_group_ray()
facts["group"] = torch.distributed.get_backend()
torch.distributed.destroy_process_group()
device = get_torch_device()
state = device.get_rng_state()
drawn = torch.rand(3)
device.set_rng_state(state)
facts["random numbers"] = bool((torch.rand(3) == drawn).all())
facts["memory"] = 0 < device.mem_get_info()[0] <= device.mem_get_info()[1]
facts["engine"] = EngineRegistry.get_engine_cls("language_model", "fsdp2").__name__
facts["replica"] = RolloutReplicaRegistry.get("rllm_hf").__name__
facts["adapter"] = get_rollout_class("rllm_hf").__name__
print(json.dumps(facts))
"""


def printed_by(program: str, platform: str | None) -> Any:
    environment = {name: value for name, value in os.environ.items() if name != "VERL_PLATFORM"}
    if platform is not None:
        environment["VERL_PLATFORM"] = platform
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_plugin_does_nothing_without_the_variable() -> None:
    facts = printed_by(WITHOUT, platform=None)
    assert facts["server"] == [], "a rollout server imports neither verl nor Ray"
    assert facts["ours"] == ["rllm_verl.cpu.register"]
    assert "cpu" not in facts["platforms"]


@pytest.mark.long
def test_verl_runs_on_cpu_only_with_the_variable() -> None:
    facts = printed_by(WITH, platform="cpu")
    assert "Duplicate" in facts.pop("group of verl"), "torch takes verl's group as it is: process_group.py can go"
    assert "strategy='fsdp'" in facts.pop("fsdp1")
    assert facts == {
        "platform": "cpu",
        "guessed": "nvidia",
        "group": "cpu:gloo",
        "random numbers": True,
        "memory": True,
        "engine": "CpuEngine",
        "replica": "CpuReplica",
        "adapter": "CpuRollout",
    }
