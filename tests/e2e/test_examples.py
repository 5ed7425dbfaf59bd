"""The programs in `examples`, shortened."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rllm_record.steps import StepFiles

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICKLY = (
    "rllm.trainer.total_batches=1",
    "rllm.rollout.n=2",
    "data.max_response_length=4",
    "rllm.sdk.store.path=traces.db",
    "rllm.record=tokens",
)


@pytest.fixture
def sub_agents(tmp_path: Path, tool_model: Path) -> Path:
    """The files of the example, and a model."""
    shutil.copytree(EXAMPLES / "sub_agents", tmp_path, dirs_exist_ok=True)
    (tmp_path / "some-hf-folder").symlink_to(tool_model)
    return tmp_path


def test_a_parent_and_its_helpers_train_with_an_estimator_each(
    sub_agents: Path, forked_rllm: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    (command,) = re.findall(r"^    rllm (.*)$", (sub_agents / "README.md").read_text(), re.MULTILINE)
    done = forked_rllm(*shlex.split(command), *QUICKLY)
    assert done.returncode == 0, done.stderr
    run = sub_agents / "runs" / "rllm-training" / "default"
    step = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    assert {"advantage/parent/mean", "advantage/helper/mean"} <= step.keys()
    assert step["env/gateway/trained_tokens"] == step["env/gateway/sampled_tokens"] > 0
    for played in StepFiles(run / "record").episodes(0):
        rows = {each.name: len(each.tokens.segment_starts) for each in played.episode.trajectories}
        assert rows == {"parent": 1, "helper": 3}


def test_an_example_is_short(sub_agents: Path) -> None:
    assert len((sub_agents / "agent.py").read_text().splitlines()) < 60
