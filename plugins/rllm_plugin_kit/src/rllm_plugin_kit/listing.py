"""Find the modules that listing a package's plugins imports, in a separate process."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys

HEAVY = (
    *("numpy", "scipy", "pandas", "sklearn", "matplotlib", "torch", "tensorflow", "jax", "flax", "triton"),
    *("transformers", "tokenizers", "safetensors", "accelerate", "peft", "datasets", "sentence_transformers"),
    *("ray", "vllm", "sglang", "verl", "trl", "tinker", "deepspeed", "megatron", "openai", "anthropic", "wandb"),
)
"""Packages that take long to import, or that talk to something."""

_SCRIPT = """
import json, sys
from rllm_core.plugins.registry import Registry

asked = json.load(sys.stdin)
Registry.load(allow=[asked["distribution"]], environ={})
print(json.dumps([package for package in asked["heavy"] if package in sys.modules]))
"""


def heavy_imports(distribution: str) -> list[str]:
    """Which of `HEAVY` are imported when the plugins of `distribution` are listed."""
    return _heavy_imports(distribution, os.pathsep.join(filter(None, sys.path)))


@functools.cache
def _heavy_imports(distribution: str, path: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        input=json.dumps({"distribution": distribution, "heavy": HEAVY}),
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    heavy: list[str] = json.loads(done.stdout)
    return heavy
