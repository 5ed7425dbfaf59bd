"""Runs with parts that a module or a program registers, and `rllm eval` of these runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from expecting import check_values

WORLD = """
from rllm_core import register_rllm_environment, register_rllm_reward, register_rllm_workflow
from rllm_core.contracts import Environment, Outcome
from rllm_core.data.types import Task
from rllm_core.rollout.workflows import SingleTurnWorkflow

@register_rllm_environment("digits", blocking=False, defaults={"rllm.workflow.name": "say"})
class Digits(Environment):
    \"\"\"Say the digit.\"\"\"
    def __init__(self, params): pass
    @classmethod
    def tasks(cls, split, params):
        return [Task(id=f"d{digit}", data={"digit": str(digit)}, data_source="digits") for digit in range(4)]
    def reset(self, task):
        return task["digit"]
    def step(self, action):
        return Outcome(done=True)

@register_rllm_workflow("say")
class Say(SingleTurnWorkflow):
    \"\"\"One answer.\"\"\"

@register_rllm_reward("same")
def same(rollout):
    \"\"\"1 for the digit.\"\"\"
    return {"value": 0.25, "correct": rollout.response.content == rollout.data["digit"]}
"""
RUN = "runs/rllm-training/digits-1"
IMPORT = "rllm.plugins.import_modules=[my_world]"


@pytest.mark.long
def test_run_of_program_is_evaluated_with_a_module(
    forked_rllm: Any, command_server: Any, environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "my_world.py").write_text(WORLD)
    program = f"""{WORLD}
from rllm_core import AgentTrainer
config = {{"env": {{"name": "digits"}}, "reward": ["same"], "rollout": {{"n": 2}}, "trainer": {{"total_batches": 1}}}}
AgentTrainer(config={{"rllm": config, "data": {{"max_response_length": 1}}}}).train()
"""
    (tmp_path / "my_program.py").write_text(program)
    trained = command_server.start("my_program", (), tmp_path, environ)
    _, errors = trained.communicate()
    assert trained.returncode == 0, errors
    lost = forked_rllm("eval", "--model", RUN)
    assert lost.returncode == 2
    check_values(lost.stderr, RUN, "'rllm.plugins.import_modules=[MODULE]'")
    for words in ((), ("digits",)):
        evaluated = forked_rllm("eval", *words, "--model", RUN, IMPORT, "--json")
        assert evaluated.returncode == 0, evaluated.stderr
        (metrics,) = json.loads(evaluated.stdout)["environments"]
        assert (metrics["name"], metrics["tasks"], metrics["reward"]["value"]) == ("digits", 4, 0.25)
