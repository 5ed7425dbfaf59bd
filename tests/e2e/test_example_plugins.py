"""The packages of examples/plugins: each is installed, tested, and chosen by name in a run.

minigrid and sqlite-utils are not in the environment of tests. `make test-plugins` puts them on the path. Without them,
the parts that import them are skipped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from rllm_core.contracts.estimator import Advantages
from rllm_core.plugins.registry import forget_in_process

PLUGINS = Path(__file__).parents[2] / "examples/plugins"
NAMES = {
    "flash-reinforce": ("estimator", "flash_reinforce"),
    "minigrid-text": ("environment", "minigrid_text"),
    "novelty-reward": ("reward", "novelty_reward"),
    "rllm-opo-port": ("estimator", "opo_port"),
    "sqlite-metrics": ("tracker", "sqlite_metrics"),
    "ulimit-sandbox": ("sandbox", "ulimit_sandbox"),
}
"""Package -> kind and name of its plugin."""
REQUIRED = {"minigrid-text": "minigrid", "sqlite-metrics": "sqlite_utils"}
"""Package -> the module that it imports."""
OFFLINE = ("--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check", "--quiet")
FEW = ("rllm.trainer.total_batches=1", "rllm.trainer.val_before_train=false", "rllm.trainer.test_freq=-1")
AGENT = """
import json, os, urllib.request

request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({"model": "m", "messages": [{"role": "user", "content": "guess"}]}).encode(),
    {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
with urllib.request.urlopen(request) as answer:
    text = json.load(answer)["choices"][0]["message"]["content"]
print(json.dumps({"reward": len(text) % 2}))
"""


def install(directory: Path, packages: Iterable[str]) -> dict[str, str]:
    """Install packages into `site` of a directory. Return the environment of processes that use them."""
    for name in packages:
        shutil.copytree(PLUGINS / name, directory / name)
    places = [f"./{name}" for name in packages]
    pip = (sys.executable, "-m", "pip", "install", *OFFLINE, "--target", "site", *places)
    subprocess.run(pip, cwd=directory, check=True, timeout=400)
    path = os.pathsep.join(filter(None, (str(directory / "site"), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "RLLM_BLOCK_PLUGINS": ""}


def run(words: Iterable[str], directory: Path, environ: dict[str, str]) -> str:
    """Run `python -m WORDS`, and return its output."""
    command = (sys.executable, "-m", *words)
    done = subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_package_is_known() -> None:
    assert sorted(path.name for path in PLUGINS.iterdir() if path.is_dir()) == sorted(NAMES)


def test_packages_can_be_installed_and_chosen(tmp_path: Path) -> None:
    environ = install(tmp_path, NAMES)

    listed = json.loads(run(("rllm", "plugins", "list", "--json"), tmp_path, environ))
    chosen = (
        "--estimator",
        "flash_reinforce",
        "--sandbox",
        "ulimit_sandbox",
        "rllm.reward=[novelty_reward]",
        "rllm.workflow.name=agent",
        "rllm.workflow.workflow_args.command=[python3,agent.py]",
    )
    (tmp_path / "agent.py").write_text(AGENT)
    planned = json.loads(run(("rllm", "train", "guess", *chosen, "--dry-run", "--json"), tmp_path, environ))

    assert set(NAMES.values()) <= {(each["kind"], each["name"]) for each in listed}
    assert {"flash-reinforce", "novelty-reward", "ulimit-sandbox"} <= {
        each["distribution"] for each in planned["plugins"]
    }


@pytest.mark.long
@pytest.mark.parametrize("package", NAMES)
def test_example_package_passes_its_tests(package: str, tmp_path: Path) -> None:
    environ = install(tmp_path, [package])
    if (module := REQUIRED.get(package)) and find_spec(module) is None:
        pytest.skip(f"{module} is not installed: make test-plugins")

    assert "passed" in run(("pytest", "-q", "-p", "no:cacheprovider", package), tmp_path, environ)


@pytest.mark.long
def test_run_uses_estimator_reward_environment_and_tracker(tmp_path: Path) -> None:
    for module in REQUIRED.values():
        pytest.importorskip(module, reason=f"{module} is not installed: make test-plugins")
    environ = install(tmp_path, NAMES)
    reward = "rllm.reward=[{name: novelty_reward, weight: 0.1}]"
    small = ("rllm.rollout.n=2", "data.train_batch_size=4", "rllm.env.env_args.max_steps=3")
    words = ("minigrid_text", "--estimator", "flash_reinforce", "rllm.trainer.logger=[sqlite_metrics]", reward)
    run(("rllm", "train", *words, *small, *FEW), tmp_path, environ)

    (directory,) = tmp_path.glob("runs/*/*")
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    (line,) = [each for each in lines if "actor/loss" in each]
    with sqlite3.connect(directory / "metrics.db") as database:
        stored = dict(database.execute("SELECT metric, value FROM metrics WHERE step = 0"))
    assert 0 < stored["env/reward.novelty_reward"] <= 1
    assert stored["reward/agent/mean"] == line["reward/agent/mean"]


@pytest.mark.long
def test_run_uses_the_sandbox(tmp_path: Path) -> None:
    environ = install(tmp_path, ["ulimit-sandbox"])
    (tmp_path / "agent.py").write_text(AGENT)
    agent = ("rllm.workflow.name=agent", "rllm.workflow.workflow_args.command=[python3,agent.py]")
    words = ("guess", "--sandbox", "ulimit_sandbox", *agent, "rllm.workflow.workflow_args.reports_reward=true")
    run(("rllm", "train", *words, *FEW, "rllm.rollout.n=4", "data.train_batch_size=2"), tmp_path, environ)

    (directory,) = tmp_path.glob("runs/*/*")
    plugins = json.loads((directory / "plugins.json").read_text())
    assert "ulimit_sandbox" in json.dumps(plugins)


def test_three_implementations_of_opo_give_equal_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    from rllm_core import get_rllm_adv_estimator
    from rllm_core.algorithms.columns import build_estimator_input
    from rllm_core.contracts.params import NoParams
    from rllm_core.data.batch import build_batch
    from rllm_core.data.types import Step, Trajectory, TrajectoryGroup
    from rllm_estimators.centred import opo

    random = np.random.default_rng(0)
    groups = [
        TrajectoryGroup(
            group_id=f"{task}:agent",
            trajectories=[
                Trajectory("agent", [Step([1], [2] * length, [-0.5] * length)], reward=float(random.normal()))
                for length in random.integers(1, 9, size)
            ],
        )
        for task, size in enumerate((4, 3, 2))
    ]
    inputs = build_estimator_input(build_batch(groups), np.ones(len(groups), dtype=bool))
    ours = opo(inputs, NoParams()).values
    monkeypatch.syspath_prepend(PLUGINS / "rllm-opo-port/src")
    from rllm_opo_port.opo import opo as ported

    result = ported(inputs, NoParams())
    assert isinstance(result, Advantages)
    np.testing.assert_allclose(result.values, ours, atol=1e-12)

    (code,) = re.findall(r"^```python\n(.*?)^```$", (PLUGINS / "rllm-opo-port/README.md").read_text(), re.M | re.S)
    try:
        exec(code, {})
        rewards = [np.array([each.reward for each in group.trajectories]) for group in groups]
        classic, _ = get_rllm_adv_estimator("opo_classic")(rewards, None, traj_groups=groups)
    finally:
        forget_in_process("estimator", "opo_classic")
    np.testing.assert_allclose(np.concatenate(classic), ours, atol=1e-12)
