"""A script under ``@hydra.main`` makes the run that the command makes of the same words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rllm.cli.configuring import plan_for, read_request

SCRIPT = """
import json, sys
import hydra
from rllm.config.compose import compose
from rllm.config.from_python import layer_from_python, remove_packaged_values
from rllm.planning.planner import make_plan
from rllm_core import AgentTrainer
from rllm_core.plugins.registry import Registry

@hydra.main(version_base=None, config_path="pkg://rllm.conf", config_name="unified")
def main(config):
    if config.rllm.rollout.n == 7:
        raise KeyError("of the script")
    if config.rllm.rollout.n == "many":
        AgentTrainer(config=config).train()
    registry = Registry.load()
    plan = make_plan(compose(registry, remove_packaged_values(layer_from_python(config), registry)), registry)
    composed = plan.composed
    print(json.dumps([composed.tree, composed.origins, sorted(composed.by_user), plan.warnings]))

for words in json.loads(sys.argv.pop()):
    sys.argv[1:] = words
    main()
"""


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLLM_BLOCK_PLUGINS", "rllm-verl,rllm-tinker")


def _call(*lines: list[str], **environ: str) -> Any:
    """Run the script with each of these command lines in one process, because the start of Hydra is slow."""
    Path("script.py").write_text(SCRIPT)
    command = [sys.executable, "-W", "error", "script.py", json.dumps(lines)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environ, timeout=200)


@pytest.mark.smoke
def test_the_same_words_make_the_same_plan() -> None:
    lines = [
        [],
        ["rllm/backend=local", "rllm.env.name=sum", "+rllm.env.env_args.largest=3", "model.name=tiny"],
        ["rllm.algorithm.adv_estimator=rloo", "rllm.algorithm.loss_fn=ppo", "rllm.trainer.logger=[rllm/console]"],
        ["+rllm.algorithm.estimator_map={judge: {name: grpo, norm_adv_by_std_in_grpo: false}}"],
        ["rllm.trainer.seed=${rllm.rollout.n}", "sampling.val=${sampling.train}"],
    ]
    ended = _call(*lines)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    for words, made in zip(lines, ended.stdout.splitlines(), strict=True):
        plan = plan_for(read_request(words, None, (), {}))
        by_user = sorted(plan.composed.by_user)
        assert json.loads(made) == [plan.composed.tree, plan.composed.origins, by_user, list(plan.warnings)]
    assert [file.name for file in Path().iterdir()] == ["script.py"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("n", "debug", "shown", "has_traceback"),
    [
        ("many", "0", 'error[wrong-value]: `rllm.rollout.n` is "many" (from command line)', False),
        ("many", "1", "Error executing job", True),
        ("7", "0", "Error executing job", True),
    ],
)
def test_rllm_error_ends_a_script_with_its_paragraph(
    n: str, debug: str, shown: str, has_traceback: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    ended = _call([f"rllm.rollout.n={n}"], RLLM_DEBUG=debug)
    assert ended.returncode == 1
    assert shown in ended.stderr
    assert ("Traceback" in ended.stderr) is has_traceback, ended.stderr
