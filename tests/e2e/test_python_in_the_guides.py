"""The unchanged Python and YAML of docs/how-to/python.md and configure.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from documents import blocks, text_of

from rllm.config.layers import layer_from_file
from rllm.planning.plan import RunPlan
from rllm.training.loop import TrainingLoop
from rllm_core.plugins.registry import Registry

from .conftest import plan_of

PYTHON, CONFIGURE = "docs/how-to/python.md", "docs/how-to/configure.md"


@pytest.mark.long
def test_the_python_guide_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each block in its own directory, with the imports of earlier blocks. Runs end after one step."""
    length = TrainingLoop.total_steps.fget
    assert length is not None
    monkeypatch.setattr(TrainingLoop, "total_steps", property(lambda loop: min(1, length(loop))))
    names: dict[str, Any] = {"__name__": "guide"}
    assert len(blocks(PYTHON, "python")) == 6
    for number, block in enumerate(blocks(PYTHON, "python")):
        directory = tmp_path / str(number)
        directory.mkdir()
        monkeypatch.chdir(directory)
        exec(compile(block, f"block {number}", "exec"), names)
        (metrics,) = directory.glob("runs/rllm-training/*/metrics.jsonl")
        assert len([line for line in metrics.read_text().splitlines() if "train/epoch" in line]) == 1


def test_every_argument_in_the_table_has_its_key() -> None:
    from inspect import signature

    from rllm.api.trainer import AgentTrainer
    from rllm.planning.unused_keys import core_keys
    from rllm_core.schema.run_config import RunConfig

    rows = re.findall(r"^\| (`.*`) \| (`.*) \|$", text_of(PYTHON), re.MULTILINE)
    arguments = [name for row, _ in rows for name in re.findall(r"`([a-z_]+)`", row)]
    keys = [name for _, row in rows for name in re.findall(r"`((?:rllm|data)\.[a-z_.]+)`", row)]
    assert len(arguments) == len(keys) == 7
    assert set(arguments) <= set(signature(AgentTrainer.__init__).parameters)
    assert set(keys) <= {key.dotted for key in core_keys(RunConfig())}


WORDS = (
    "rllm.algorithm.adv_estimator=rloo",
    "rllm.trainer.total_batches=1",
    "rllm.rollout.n=2",
    "rllm.rollout.n_val=1",
    "rllm.trainer.val_before_train=false",
    "data.train_batch_size=8",
)
OWN_PRIMARY = """
defaults: [unified, _self_]
hydra: {searchpath: ["pkg://rllm.conf"], run: {dir: .}, output_subdir: null}
rllm: {trainer: {project_name: mine}}
"""


@pytest.mark.long
def test_hydra_script_makes_the_commands_run(
    tmp_path: Path, environ: dict[str, str], command_server: Any, forked_rllm: Callable[..., Any]
) -> None:
    (script,) = blocks(CONFIGURE, "python")
    (tmp_path / "train.py").write_text(script)
    words = ("rllm/backend=local", *WORDS, "rllm.trainer.output_dir=")
    arguments = ("rllm.env.name=guess", *words[:-1], f"{words[-1]}{tmp_path}/script")
    done = command_server.start("train", arguments, tmp_path, environ)
    _, errors = done.communicate()
    assert done.returncode == 0, errors
    assert forked_rllm("train", "guess", *words[:-1], f"{words[-1]}{tmp_path}/command").returncode == 0

    (by_script,) = tmp_path.glob("script/*/*")
    (by_command,) = tmp_path.glob("command/*/*")
    configs = [yaml.safe_load((run / "config.yaml").read_text()) for run in (by_script, by_command)]
    for config in configs:
        del config["rllm"]["trainer"]["output_dir"]
        del config["rllm"]["composed"]  # It stores the origin of each value.
    assert configs[0] == configs[1]
    rewards = [
        re.findall(r'"reward/agent/mean": [\d.]+', (run / "metrics.jsonl").read_text())
        for run in (by_script, by_command)
    ]
    assert rewards[0] == rewards[1] != []


@pytest.mark.long
def test_own_primary_config_begins_with_the_unified_one(
    tmp_path: Path, environ: dict[str, str], command_server: Any
) -> None:
    (script,) = blocks(CONFIGURE, "python")
    unified, own = 'config_path="pkg://rllm.conf", config_name="unified"', 'config_path=".", config_name="mine"'
    (tmp_path / "own.py").write_text(script.replace(unified, own))
    (tmp_path / "mine.yaml").write_text(OWN_PRIMARY)
    words = ("rllm/backend=local", "rllm.env.name=guess", "+rllm.env.env_args.prompt=number", *WORDS)
    done = command_server.start("own", words, tmp_path, environ)
    _, errors = done.communicate()
    assert done.returncode == 0, errors
    config = yaml.safe_load((tmp_path / "runs/mine/guess-1/config.yaml").read_text())
    assert config["rllm"]["env"] == {"name": "guess", "env_args": {"prompt": "number"}}


def test_spellings_and_roles_of_the_guide_choose_estimators(tmp_path: Path, worlds: Registry) -> None:
    whole, spellings, roles = blocks(CONFIGURE, "yaml")
    file = tmp_path / "my.yaml"

    def plan(text: str, **words: Any) -> RunPlan:
        file.write_text(text)
        return plan_of({"rllm.env.name": "guess", **words}, worlds, [layer_from_file(file)])

    assert plan(whole, **{"rllm.rollout.n": 8}).config.rllm.trainer.experiment_name == "rloo-8"
    for line in spellings.splitlines():
        chosen = plan(f"rllm:\n  algorithm:\n    {line}\n").estimators.default
        assert chosen.registered.qualified_name == "rllm-core/grpo"
    made = plan(roles)
    names = [(made.estimators.get(role).plugin.name, made.losses.get(role).plugin.name) for role in ("solver", "judge")]
    assert names == [("rloo", "importance_sampling"), ("reinforce", "ppo")]
