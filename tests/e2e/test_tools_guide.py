"""docs/how-to/tools.md, word for word, in an empty directory, and a run with tool calls."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import blocks, commands
from expecting import check_one_error, check_printed

from rllm.builtin.tools.toolbox import Toolbox, runnable
from rllm_core.contracts.engine import Completion, EnginePlugin, SamplingParams
from rllm_core.plugins.registry import Registry

from .conftest import Parrot, plan_of

GUIDE = "docs/how-to/tools.md"
Rllm = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def directory(tmp_path: Path, tool_model: Path) -> Path:
    """Write the files of the guide."""
    (tmp_path / "tools.py").write_text(blocks(GUIDE, "python")[0])
    (tmp_path / "box.py").write_text(blocks(GUIDE, "python")[1])
    (tmp_path / "train.jsonl").write_text(blocks(GUIDE, "json")[0])
    (tmp_path / "some-hf-directory").symlink_to(tool_model)
    return tmp_path


@pytest.mark.long
def test_run_of_the_guide_trains(directory: Path, rllm_here: Rllm) -> None:
    command = next(each for each in commands(GUIDE) if each.startswith("rllm "))
    done = rllm_here(*shlex.split(command)[1:], "data.max_response_length=4", "rllm.trainer.total_batches=1")
    assert done.returncode == 0, done.stderr
    lines = (directory / "runs/rllm-training/question-1/metrics.jsonl").read_text().splitlines()
    (step,) = [step for step in map(json.loads, lines) if "env/tool_calls" in step]
    assert step["env/tool_calls"] >= 0.0


def test_the_environment_of_the_guide_offers_a_method() -> None:
    # No decorator, because a registration in this process would affect later tests.
    names: dict[str, Any] = {}
    exec(re.sub(r"^@register_rllm_environment.*$", "", blocks(GUIDE, "python")[1], flags=re.MULTILINE), names)
    box = names["Box"](None)
    box.reset(box.tasks("train", None)[3].data)
    (turn,) = Toolbox([runnable(each) for each in box.tools({})], 1.0).schemas
    assert turn["function"]["parameters"]["properties"]["number"]["type"] == "integer"
    assert (box.turn(2), box.turn(3)) == ("still shut", "open")
    assert box.step("done").correct


@pytest.mark.parametrize(
    ("words", "code", "value"),
    [
        ("--tools tools.py:ad", "unknown-function", "'add'"),
        ("--tools tool.py:add", "file-unreadable", "tool.py"),
        ("--tools tools.py:add --model tiny", "tools-not-supported", "tools"),
    ],
)
def test_what_is_wrong_is_said_in_one_paragraph(
    words: str, code: str, value: str, directory: Path, rllm_here: Rllm
) -> None:
    done = rllm_here("train", "question", "--data", "train.jsonl", "--reward", "exact", *shlex.split(words))
    assert done.returncode == 2
    check_printed(done.stderr, code, value)
    check_one_error(done.stderr)


class Caller(Parrot):
    """A rollout engine that adds with a tool, and then answers with the tool's result."""

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        said = self.renderer.text(prompt_ids)
        call = f'<tool_call>{{"name": "add", "arguments": {{"a": {said[-3]}, "b": {said[-1]}}}}}</tool_call>'
        tokens = self.renderer.response_ids(said[-1] if "</tool_call>" in said else call)
        logprobs = np.full(len(tokens), -1.0, np.float32)
        return Completion(token_ids=tokens, logprobs=logprobs, finish_reason="stop", weight_version=self.version)


@pytest.mark.parametrize(
    "chosen",
    [
        {
            "rllm.env.name": "question",
            "rllm.reward": ["exact"],
            "rllm.workflow.name": "tool_calling",
            "rllm.workflow.workflow_args.tools": ["tools.py:add"],
        },
        {"rllm.env.name": "trl", "rllm.env.env_args.factory": "trl_environment.py:Sums"},
    ],
    ids=["question", "trl"],
)
def test_model_that_calls_a_tool_solves_tasks(
    chosen: dict[str, Any], directory: Path, carry_out: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory)
    (directory / "trl_environment.py").write_text(blocks("docs/how-to/from-trl.md", "python")[1])
    registry = Registry.load()
    registry.add(EnginePlugin(name="caller", summary="For tests.", load=lambda: Caller))
    settings = {
        **chosen,
        "rllm.rollout.engine": "caller",
        "rllm.trainer.total_batches": 1,
        "data.train_dataset": "train.jsonl",
        "model.name": "some-hf-directory",
    }
    (step,) = carry_out(plan_of(settings, registry)).steps
    assert step.metrics["env/tool_calls"] == 1.0
    assert step.metrics["env/tool_calls_malformed"] == step.metrics["env/tool_calls_failed"] == 0.0
    assert step.metrics["reward/agent/mean"] == 1.0
    assert step.metrics["batch/prefix_breaks"] == 0.0
    for episode in step.generated:
        assert [each.text.endswith("</tool_call>") for each in episode.trajectories[0].steps] == [True, False]
