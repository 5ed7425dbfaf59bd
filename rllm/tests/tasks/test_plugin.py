"""The plugins, and what listing it costs."""

from __future__ import annotations

import subprocess
import sys


def test_listing_the_plugin_imports_neither_numpy_nor_what_plays_and_scores() -> None:
    script = (
        "import sys; from rllm.tasks.plugin import environments, rewards; "
        "list(environments()); list(rewards()); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200)
    modules = set(done.stdout.split())
    ours = {name for name in modules if name.startswith("rllm.tasks.")}
    assert ours == {f"rllm.tasks.{name}" for name in ("plugin", "options", "reward_options", "judge_options")}
    assert not {"numpy", "math_verify", "sympy", "httpx"} & modules
