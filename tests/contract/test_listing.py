"""Every package of this repository lists its plugins without importing their libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from workspace import distributions

from rllm_plugin_kit.plugin import HEAVY

LIBRARIES = {
    *HEAVY,
    "pydantic",
    *(
        "datasets",
        "gymnasium",
        "huggingface_hub",
        "inspect_ai",
        "httpx",
        "hydra",
        "math_verify",
        "pyspiel",
        "omegaconf",
        "pyarrow",
        "reasoning_gym",
    ),
    *("openenv", "renderers", "sympy", "tensorboard", "tensorboardX", "textarena", "verifiers"),
}
SCRIPT = """
import json, sys
from importlib.metadata import entry_points
from rllm_core.plugins.registry import Registry

registry = Registry.load(environ={})
modules = {entry.name: entry.value for entry in entry_points(group="rllm.plugins")}
print(json.dumps({"modules": modules, "broken": [str(each) for each in registry.broken], "imported": [*sys.modules]}))
"""


def test_listing_plugins_imports_only_their_specs() -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(
        command, env=os.environ | {"RLLM_BLOCK_PLUGINS": ""}, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    ours = {each.name for each in distributions()} & found["modules"].keys()
    assert len(ours) > 10
    assert {found["modules"][name] for name in ours} <= {*found["imported"]}
    assert found["broken"] == []
    assert not LIBRARIES & {*found["imported"]}
