"""docs/how-to/tools.md, word for word, in an empty directory, and a run with tool calls."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import documents
import numpy as np
import pytest
from expecting import check_one_error, check_printed

from rllm.config.layers import layer_from_file
from rllm.tools.toolbox import Toolbox, load_tools, runnable
from rllm_core.contracts.engine import Completion, EnginePlugin, EngineSetup, NamedTensors, SamplingParams
from rllm_core.contracts.plugin import NoParams
from rllm_core.plugins.registry import Registry

from .conftest import plan_of

GUIDE = (Path(__file__).parents[2] / "docs" / "how-to" / "tools.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    rllm (.*)$", GUIDE, re.MULTILINE)
QUICKLY = ("data.max_response_length=4", "rllm.trainer.total_batches=1", "--overwrite")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def directory(tmp_path: Path, tool_model: Path) -> Path:
    """Write the files of the guide."""
    (tmp_path / "tools.py").write_text(blocks("python")[0])
    (tmp_path / "box.py").write_text(blocks("python")[1])
    (tmp_path / "train.jsonl").write_text(blocks("json")[0])
    (tmp_path / "some-hf-directory").symlink_to(tool_model)
    return tmp_path


def steps(directory: Path) -> list[dict[str, float]]:
    lines = (directory / "runs/rllm-training/default/metrics.jsonl").read_text().splitlines()
    return [step for step in map(json.loads, lines) if "env/tool_calls" in step]


@pytest.mark.long
def test_the_commands_of_the_guide_run(
    directory: Path, forked_rllm: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    with_files, dry_run, with_environment = COMMANDS
    for command in (with_files, with_environment):
        done = forked_rllm(*shlex.split(command), *QUICKLY)
        assert done.returncode == 0, done.stderr
        (step,) = steps(directory)
        assert step["env/tool_calls"] >= 0.0
    assert forked_rllm(*shlex.split(dry_run)).returncode == 0


def test_the_yaml_of_the_guide_is_a_configuration(directory: Path, worlds: Registry) -> None:
    (yaml,) = blocks("yaml")
    (directory / "my.yaml").write_text(yaml)
    settings = {"rllm.env.name": "question", "rllm.reward": ["exact"]}
    plan = plan_of(settings, worlds, [layer_from_file(directory / "my.yaml")])
    assert plan.workflow.qualified_name == "rllm/tool_calling"
    assert plan.workflow.params.tools == ["tools.py:add", "tools.py:look_up"]
    assert (plan.workflow.params.tool_timeout, plan.config.rllm.agent.max_steps) == (10.0, 8)


def test_the_functions_of_the_guide_are_tools(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    add, look_up = load_tools(["tools.py:add", "tools.py:look_up"])
    assert add.schema["function"]["description"] == "Adds two whole numbers."
    assert look_up.schema["function"]["parameters"]["properties"]["limit"] == {
        "type": "integer",
        "description": "how many at most",
    }
    assert add.function(**add.read({"a": 1, "b": 2})) == 3
    assert asyncio.run(look_up.function(**look_up.read({"word": "o"}))) == ["one", "only"]


def test_the_environment_of_the_guide_offers_a_method() -> None:
    # No decorator, because a registration in this process would affect later tests.
    source = re.sub(r"^@register_rllm_environment.*$", "", blocks("python")[1], flags=re.MULTILINE)
    names: dict[str, Any] = {}
    exec(source, names)
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
    words: str, code: str, value: str, directory: Path, rllm_here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = rllm_here("train", "question", "--data", "train.jsonl", "--reward", "exact", *shlex.split(words))
    assert done.returncode == 2
    check_printed(done.stderr, code, value)
    check_one_error(done.stderr)


class Caller:
    """A rollout engine that adds with a tool, and then answers with the tool's result."""

    def __init__(self, params: NoParams) -> None:
        pass

    async def start(self, setup: EngineSetup) -> None:
        self.renderer, self.max_context = setup.renderer, setup.max_context

    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        assert dict(weights)
        self._version = version

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        said = self.renderer.text(prompt_ids)
        if "</tool_call>" in said:
            tokens = self.renderer.response_ids(said[-1])
        else:
            first, second = said[-3], said[-1]
            call = f'<tool_call>{{"name": "add", "arguments": {{"a": {first}, "b": {second}}}}}</tool_call>'
            tokens = self.renderer.response_ids(call)
        logprobs = np.full(len(tokens), -1.0, np.float32)
        return Completion(token_ids=tokens, logprobs=logprobs, finish_reason="stop", weight_version=self._version)

    async def end_session(self, session: str) -> None:
        pass

    async def close(self) -> None:
        pass


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
def test_a_run_whose_model_calls_a_tool_solves_its_tasks(
    chosen: dict[str, Any], directory: Path, carry_out: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory)
    (directory / "trl_environment.py").write_text(documents.blocks("docs/how-to/from-trl.md", "python")[1])
    registry = Registry.load()
    registry.add(EnginePlugin(name="caller", summary="For tests.", params=NoParams, load=lambda: Caller))
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
