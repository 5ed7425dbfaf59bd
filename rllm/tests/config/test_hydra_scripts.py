"""A script under ``@hydra.main`` makes the run that the command makes of the same words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from expecting import check_values
from written_distribution import write_distribution

from rllm.cli.configuring import plan_for, read_request

pytestmark = pytest.mark.long

PLUGIN = """
from pathlib import Path
from pydantic import Field
from rllm_core.contracts.backend import BackendPlugin, Capabilities, SharedKey
from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_core.contracts.plugin import Params
from rllm_core.plugins import hookimpl

class Model(Params):
    name: str = Field("tiny", description="Model.")
    lora_rank: int = Field(0, description="Rank.")

class Training(Params):
    learning_rate: float = Field(1e-4, description="Step size.")
    clip: float = Field(0.2, description="Clipping range.")

class Sections(Params):
    model: Model = Field(default_factory=Model, description="What is trained.")
    training: Training = Field(default_factory=Training, description="How.")

class Range(Params):
    low: int = Field(0, description="Least.")
    high: int = Field(9, description="Most.")

def not_loaded():
    raise AssertionError("planning loads nothing")

def backend(name):
    return BackendPlugin(
        name=name, summary="Never loaded.", params=Sections, load=not_loaded,
        config_yaml=lambda: Path(__file__).parent / "conf" / "rllm" / "backend" / f"{name}.yaml",
        shared_keys=(SharedKey(native="training.clip", rllm="rllm.algorithm.eps_clip"),),
        capabilities=Capabilities(custom_losses=True, columns=frozenset({"old_logprobs"})),
    )

@hookimpl
def rllm_backends():
    return [backend("local"), backend("other")]

@hookimpl
def rllm_environments():
    return [EnvironmentPlugin(
        name="range", summary="Never loaded.", params=Range, load=not_loaded,
        defaults={"rllm.rollout.n": 3}, recipes={"local/tiny": {"training.learning_rate": 0.5}},
    )]
"""

SCRIPT = """
import json, sys
import hydra
from rllm.config.compose import compose
from rllm.config.from_python import layer_from_python, without_packaged
from rllm.planning.planner import make_plan
from rllm_core.plugins.registry import Registry

@hydra.main(version_base=None, config_path="{config_path}", config_name="{config_name}")
def main(config):
    registry = Registry.load()
    layers = without_packaged(layer_from_python(config), registry)
    plan = make_plan(compose(registry, layers), registry)
    composed = plan.composed
    print(json.dumps([composed.tree, composed.origins, sorted(composed.by_user), plan.warnings]))

for words in json.loads(sys.argv.pop()):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as ended:
        print(f"ended with {ended.code}", file=sys.stderr)
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, on a machine where only the plugin above is installed."""
    site, place = tmp_path / "site", tmp_path / "place"
    backends = site / "conf" / "rllm" / "backend"
    for directory in (backends, place):
        directory.mkdir(parents=True)
    write_distribution(site, "scripted", PLUGIN)
    for name in ("local", "other"):
        (backends / f"{name}.yaml").write_text(
            f"# @package _global_\nrllm: {{backend: {name}}}\nmodel: {{name: tiny}}\n"
        )
    monkeypatch.setenv("PYTHONPATH", str(site))
    others = {entry.dist.name for entry in entry_points(group="rllm.plugins") if entry.dist} - {"rllm-core"}
    monkeypatch.setenv("RLLM_BLOCK_PLUGINS", ",".join(sorted(others)))
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "scripted", raising=False)
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def script(workplace: Path) -> Run:
    """Calls a script with each of these command lines, in one process: starting Hydra takes longer than composing."""

    def run(*lines: list[str], config_path: str = "pkg://rllm.conf", config_name: str = "unified") -> Any:
        text = SCRIPT.replace("{config_path}", config_path).replace("{config_name}", config_name)
        (workplace / "script.py").write_text(text)
        command = [sys.executable, "-W", "error", "script.py", json.dumps(lines)]
        return subprocess.run(command, capture_output=True, text=True, cwd=workplace, env=os.environ, timeout=200)

    return run


def _by_command(*words: str, files: tuple[str, ...] = ()) -> list[Any]:
    plan = plan_for(read_request(words, None, files, {}))
    return [plan.composed.tree, plan.composed.origins, sorted(plan.composed.by_user), list(plan.warnings)]


LINES = [
    [],
    ["rllm/backend=other", "rllm.rollout.n=4", "model.name=big"],
    ["rllm.env.name=range", "+rllm.env.env_args.low=3", "++rllm.env.env_args.high=5"],
    [
        *("rllm.algorithm.adv_estimator=rloo", "rllm.algorithm.loss_fn=ppo"),
        *("rllm.trainer.logger=[rllm/console]", "+training.clip=0.3"),
    ],
    ["+rllm.algorithm.estimator_map={judge: {name: grpo, norm_adv_by_std_in_grpo: false}}", "rllm.trainer.seed=8"],
    ["rllm.trainer.seed=${rllm.rollout.n}", "sampling.val=${sampling.train}", "rllm.trainer.experiment_name='1'"],
]


def test_the_same_words_make_the_same_plan_and_nothing_is_left_behind(script: Run, workplace: Path) -> None:
    ended = script(*LINES)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    for words, made in zip(LINES, ended.stdout.splitlines(), strict=True):
        assert json.loads(made) == _by_command(*words)
    assert [file.name for file in workplace.iterdir()] == ["script.py"]


def test_a_primary_config_of_the_users_own_is_a_config_file(script: Run, workplace: Path) -> None:
    own = workplace / "conf" / "mine.yaml"
    own.parent.mkdir()
    text = "rllm:\n  rollout: {n: 4, n_val: 1}\n  trainer: {project_name: mine, seed: 0}\nmodel: {name: big}\n"
    own.write_text(f"defaults: [unified, _self_]\n{text}")
    words = ["rllm.trainer.seed=3", "rllm/backend=other"]
    ended = script(words, config_path="conf", config_name="mine")
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    own.write_text(text)
    tree, origins, by_user, warnings = _by_command(
        "rllm.trainer.seed=3", "rllm/backend=other", files=("conf/mine.yaml",)
    )
    origins = {key: origin.replace("conf/mine.yaml", "the Python config") for key, origin in origins.items()}
    assert json.loads(ended.stdout) == [tree, origins, by_user, warnings]
    assert sorted(file.name for file in workplace.iterdir()) == ["conf", "script.py"]


def test_what_is_wrong_is_said(script: Run) -> None:
    wrong = {
        "rllm.backend=other": ["`rllm.backend`", "'other'", "rllm/backend=local"],
        "rllm/backend=third": ["'rllm/backend/third'"],
        "rllm.rollout.n=many": ["`rllm.rollout.n`", '"many" (from command line)'],
        "rllm.rolout.n=3": ["Key 'rolout'"],
    }
    *said, rest = script(*([word] for word in wrong)).stderr.split("ended with 1\n")
    assert rest == ""
    for each, values in zip(said, wrong.values(), strict=True):
        check_values(each, *values)


TRAINS = """
import hydra
from rllm_core import AgentTrainer

@hydra.main(version_base=None, config_path="pkg://rllm.conf", config_name="unified")
def main(config):
    if config.rllm.rollout.n == 7:
        raise KeyError("of the script")
    AgentTrainer(config=config).train()

main()
"""


@pytest.mark.parametrize(
    ("word", "debug", "shown", "frames"),
    [
        ("rllm.rollout.n=many", "0", 'error[wrong-value]: `rllm.rollout.n` is "many" (from command line)', False),
        ("rllm.rollout.n=many", "1", "Error executing job", True),
        ("rllm.rollout.n=7", "0", "Error executing job", True),
    ],
)
def test_an_error_of_ours_ends_a_script_with_its_paragraph(
    word: str, debug: str, shown: str, frames: bool, workplace: Path
) -> None:
    (workplace / "trains.py").write_text(TRAINS)
    environ = {name: value for name, value in os.environ.items() if name != "HYDRA_FULL_ERROR"} | {"RLLM_DEBUG": debug}
    command = [sys.executable, "trains.py", word]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=workplace, env=environ, timeout=200)
    assert ended.returncode == 1
    assert shown in ended.stderr
    assert ("Traceback" in ended.stderr) is frames, ended.stderr
