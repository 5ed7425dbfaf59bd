"""The commands of short pages, one page after the other from top to bottom. Trainings take three steps."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from documents import blocks, commands

pytestmark = pytest.mark.long

DEBUG, METRICS = "docs/how-to/debug-learning.md", "docs/how-to/read-metrics.md"
TRL, INSTALL = "docs/how-to/from-trl.md", "docs/install.md"
SIZE, TROUBLE = "docs/how-to/size-a-run.md", "docs/troubleshooting.md"
FILES = {
    DEBUG: {"train.jsonl": ("json", 0), "rewards.py": ("python", 0)},
    TRL: {
        "train.jsonl": ("json", 0),
        "trl_reward.py": ("python", 0),
        "run.yaml": ("yaml", 0),
        "trl_environment.py": ("python", 1),
    },
}
SHORT = ["rllm.rollout.n=4", "rllm.trainer.val_before_train=false", "rllm.trainer.test_freq=-1", "--overwrite"]


@pytest.mark.usefixtures("with_view")
@pytest.mark.parametrize("page", [DEBUG, METRICS, TRL, INSTALL, SIZE, TROUBLE])
def test_the_commands_of_the_page_run(page: str, forked_rllm: Any, tmp_path: Path, tool_model: Path) -> None:
    (tmp_path / "some-hf-directory").symlink_to(tool_model)
    for name, (language, number) in FILES.get(page, {}).items():
        (tmp_path / name).write_text(blocks(page, language)[number])
    tried = [command for command in commands(page) if command.startswith("rllm ")]
    assert tried
    for command in tried:
        words = [word.replace("total_batches=20", "total_batches=3") for word in shlex.split(command)[1:]]
        done = forked_rllm(*words, *(SHORT if words[0] == "train" and page != TRL else ()))
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def test_the_metrics_show_which_run_has_a_signal(
    forked_rllm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, (language, number) in FILES[DEBUG].items():
        (tmp_path / name).write_text(blocks(DEBUG, language)[number])
    for command in commands(DEBUG)[:2]:
        assert forked_rllm(*shlex.split(command)[1:]).returncode == 0
    monkeypatch.chdir(tmp_path)
    exec(blocks(DEBUG, "python")[1], {})
    printed, shown = capsys.readouterr().out.splitlines(), blocks(DEBUG, "text")[0].splitlines()
    assert printed[:3] == shown[:3]
    assert len(printed) == len(shown)
    # Other processors round the values of the second run differently.
    assert all("actor/grad_norm=0" not in line for line in printed[3:])


def test_the_metrics_of_the_page_exist(forked_rllm: Any, tmp_path: Path) -> None:
    assert forked_rllm("train", "guess", "rllm.trainer.total_batches=1", "data.train_batch_size=8").returncode == 0
    lines = (tmp_path / "runs/rllm-training/default/metrics.jsonl").read_text().splitlines()
    step = json.loads(lines[1])
    rows = [
        line.split("`")[1]
        for line in Path(__file__).parents[2].joinpath(METRICS).read_text().splitlines()
        if line.startswith("| `")
    ]
    assert rows and set(rows) <= set(step)
