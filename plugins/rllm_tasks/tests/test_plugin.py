"""What rllm-tasks offers, and what listing it costs."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

from rllm_tasks import plugin


def test_the_entry_point_has_the_name_of_the_distribution() -> None:
    (found,) = entry_points(group="rllm.plugins", name="rllm-tasks")
    assert found.load() is plugin


def test_listing_the_plugin_imports_neither_numpy_nor_what_plays_and_scores() -> None:
    script = (
        "import sys; from rllm_tasks.plugin import rllm_environments, rllm_rewards; "
        "list(rllm_environments()); list(rllm_rewards()); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200)
    modules = set(done.stdout.split())
    ours = {name for name in modules if name.startswith("rllm_tasks.")}
    assert ours == {f"rllm_tasks.{name}" for name in ("plugin", "options", "reward_options", "judge_options")}
    assert not {"numpy", "math_verify", "sympy", "httpx"} & modules
