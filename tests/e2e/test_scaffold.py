"""Unedited packages of `rllm plugins new`: they install, keep their contract and train by name."""

from __future__ import annotations

import io
import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rllm.cli.main import main
from rllm_plugin_kit.scaffold.kinds import TEMPLATES

FEW = (
    "rllm.trainer.total_batches=1",
    "rllm.trainer.val_before_train=false",
    "rllm.trainer.test_freq=-1",
    "rllm.rollout.n_val=1",
)
SMALL = ("rllm.rollout.n=8", "data.train_batch_size=8")
"""Enough rollouts that some succeed and others do not."""
GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "plugin.md"
OFFLINE = ("--no-index", "--no-build-isolation", "--disable-pip-version-check", "--quiet")
"""Install without requirements, because all of them are installed."""

Rllm = Callable[..., "subprocess.CompletedProcess[str]"]


def next_commands(rllm: Rllm, *words: str) -> list[list[str]]:
    """Write a package, and return the arguments of the three next commands."""
    written = rllm("plugins", "new", *words)
    assert (written.returncode, written.stderr) == (0, "")
    install, test, train = written.stdout.partition("Next:\n")[2].splitlines()
    return [shlex.split(line) for line in (install, test, train)]


def steps_of(run: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "batch/episodes" in line]


@dataclass(frozen=True)
class Packages:
    """A new package of each kind, and a directory with all of them installed."""

    directory: Path
    site: Path
    next_commands: dict[str, list[list[str]]]
    """Kind -> arguments of the commands that install, test and train."""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    directory = tmp_path_factory.mktemp("packages")

    def rllm(*words: str) -> subprocess.CompletedProcess[str]:
        output, errors = io.StringIO(), io.StringIO()
        with chdir(directory), redirect_stdout(output), redirect_stderr(errors):
            code = main(words)
        return subprocess.CompletedProcess(words, code, output.getvalue(), errors.getvalue())

    commands = {kind: next_commands(rllm, f"my-{kind}", "--kind", kind) for kind in TEMPLATES}
    paths = [f"./my-{kind}" for kind in TEMPLATES]
    pip = (sys.executable, "-m", "pip", "install", *OFFLINE, "--no-deps", "--target", "site", *paths)
    subprocess.run(pip, cwd=directory, check=True, timeout=400)
    return Packages(directory, directory / "site", commands)


AGENT = """
import json, os, urllib.request

request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({"model": "m", "messages": [{"role": "user", "content": "guess"}]}).encode(),
    {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
with urllib.request.urlopen(request) as answer:
    text = json.load(answer)["choices"][0]["message"]["content"]
print(json.dumps({"reward": sum(map(ord, text)) % 2}))
"""


@pytest.fixture
def installed_here(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the packages importable in this process during a test."""
    monkeypatch.syspath_prepend(packages.site)
    yield
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]


@pytest.mark.long
def test_new_packages_pass_their_tests(packages: Packages, command_server: Any, environ: dict[str, str]) -> None:
    """All tests run in one process, which imports pytest and torch once, with each package's arguments."""
    environ["PYTHONPATH"] = str(packages.site)
    words = [packages.next_commands[kind][1] for kind in TEMPLATES]
    assert words == [["pytest", f"my-{kind}"] for kind in TEMPLATES]
    tested = command_server.start(
        "pytest", ["-rA", *(directory for _, directory in words)], packages.directory, environ
    )
    printed, errors = tested.communicate(timeout=280)
    assert tested.returncode == 0, printed + errors
    # This works for any root directory of pytest.
    passed = set(re.findall(r"^PASSED \S*/test_my_(\w+)\.py::", printed, re.MULTILINE))
    assert passed == set(TEMPLATES)


@pytest.mark.long
@pytest.mark.parametrize("kind", TEMPLATES)
def test_new_package_trains_by_file_and_name(
    kind: str, packages: Packages, installed_here: None, rllm_here: Rllm, tmp_path: Path
) -> None:
    (config,) = re.findall(
        r"```yaml\n(.*?)```", (packages.directory / f"my-{kind}" / "README.md").read_text(), re.DOTALL
    )
    (tmp_path / "my.yaml").write_text(config)
    # The tasks of the dataset are two numbers to add.
    environment = {"environment": [], "dataset": ["sum"]}.get(kind, ["guess"])
    planned = rllm_here("train", *environment, "--dry-run", "--config", "my.yaml")
    assert planned.returncode == 0, planned.stderr
    assert f"my_{kind}" in planned.stdout

    train = packages.next_commands[kind][2]
    # This backend's model is tiny, so one success needs more rollouts.
    more = ("data.max_response_length=2", "rllm.rollout.n=64") if kind == "backend" else SMALL
    assert train[0] == "rllm"
    (tmp_path / "agent.py").write_text(AGENT)  # The program of the sandbox.
    trained = rllm_here(*train[1:], *FEW, *more)
    assert trained.returncode == 0, trained.stderr
    (run,) = tmp_path.glob("runs/*/*")
    (step,) = steps_of(run)
    assert math.isfinite(step["actor/loss"])
    assert step["actor/grad_norm"] > 0


def test_commands_and_line_of_guide_match_the_package(rllm_here: Rllm, tmp_path: Path) -> None:
    guide = GUIDE.read_text()
    (old, new) = re.findall(r"^[-+]( {8}.*\n)", guide, re.MULTILINE)
    assert all(f"    {shlex.join(words)}\n" in guide for words in next_commands(rllm_here, "my-estimator"))
    code = (tmp_path / "my-estimator" / "src" / "my_estimator" / "estimator.py").read_text()
    assert code.count(old) == 1
    compile(code.replace(old, new), "estimator.py", "exec")
