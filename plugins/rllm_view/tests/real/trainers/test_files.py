"""Files that TRL's trainer and verl's trainer write: `rllm view` shows their counts, rewards and text."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers
from opening import open_file
from trl.trainer.grpo_trainer import GRPOTrainer
from verl.trainer.ppo.ray_trainer import RayPPOTrainer

CONVERSATIONS = [
    [
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": CALL}]},
        {"role": "tool", "name": "add", "content": text},
        {"role": "assistant", "content": text},
    ]
    for CALL in [{"name": "add", "arguments": {"a": 1}}]
    for text in ("2", "3")
]


def write_completions(directory: Path, step: int, prompts: list[Any], completions: list[Any]) -> None:
    """Write a file with the method of TRL's trainer that logs a step."""
    trainer = object.__new__(GRPOTrainer)
    trainer.model = SimpleNamespace(training=True)
    trainer._metrics = {"train": defaultdict(list)}
    trainer.accelerator = SimpleNamespace(is_main_process=True)
    trainer.log_completions, trainer.num_completions_to_print = True, 1
    trainer.args = SimpleNamespace(report_to=[], output_dir=str(directory), log_completions_hub_repo=None)
    trainer.state = SimpleNamespace(global_step=step)
    count = len(prompts)
    trainer._logs = {
        "prompt": prompts,
        "completion": completions,
        "rewards": {"right": [1.0] + [0.0] * (count - 1), "short": [0.25] * count},
        "advantages": [0.5, -0.5] * (count // 2),
        "extra": {"answer": ["2"] * count},
        "images": None,
    }
    (directory / "completions").mkdir(parents=True, exist_ok=True)
    trainer.log({})


@pytest.mark.parametrize("completions", [["two", "three"], CONVERSATIONS])
def test_view_opens_completions_of_trl(tmp_path: Path, monkeypatch: Any, completions: list[Any]) -> None:
    monkeypatch.setattr(transformers.Trainer, "log", lambda *arguments: None)
    is_text = isinstance(completions[0], str)
    prompt = "1+1" if is_text else [{"role": "user", "content": "1+1"}]
    for step in (1, 2):
        write_completions(tmp_path, step, [prompt, prompt], completions)
    for path, steps in ((tmp_path / "completions", 2), (tmp_path / "completions/completions_00002.parquet", 1)):
        shown = open_file(path)
        assert [(each.task, each.reward) for each in shown] == [("prompt-0", 1.25), ("prompt-0", 0.25)] * steps
        assert shown[0].prompts[0] == [("user", "1+1")]
        assert [each.responses[-1] for each in shown] == (["two", "three"] if is_text else ["2", "3"]) * steps
    if not is_text:
        assert '"name": "add"' in (shown[0].responses[0] or "")
        assert shown[1].prompts[1] == [("tool", "3")]


def test_view_opens_rollouts_of_verl(tmp_path: Path) -> None:
    for step in (2, 3):
        RayPPOTrainer._write_generations(
            ["user\n1+1", "user\n1+1", "user\n2+2"],
            ["2", "3", f"{step}"],
            ["2", "2", "4"],
            [1.0, 0.0, -0.5],
            {"acc": [True, False, False], "reward": [1.0, 0.0, -0.5]},
            str(tmp_path),
            step,
        )
    shown = open_file(tmp_path)
    assert [(each.task, each.reward) for each in shown[:3]] == [
        ("prompt-0", 1.0),
        ("prompt-0", 0.0),
        ("prompt-1", -0.5),
    ]
    assert [each.responses for each in shown] == [[text] for text in ("2", "3", "2", "2", "3", "3")]
    assert [each.prompts for each in shown[:3]] == [[[("user", "user\n1+1")]]] * 2 + [[[("user", "user\n2+2")]]]
    assert len(open_file(tmp_path / "3.jsonl")) == 3
