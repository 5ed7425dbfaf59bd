"""The commands of the README and the tutorial, and the README's plugin, unchanged."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from documents import blocks, commands, text_of
from workspace import ROOT

from rllm.config.saved_config import read_config
from rllm_core.plugins.registry import Registry, forget_in_process
from rllm_core.plugins.specs import KINDS

README = text_of("README.md")
TUTORIAL = "docs/tutorial.md"

SHORT = (
    "rllm.trainer.total_batches=2",
    "rllm.rollout.n=4",
    "data.train_batch_size=8",
    "rllm.trainer.val_before_train=false",
)


def _file(name: str, language: str) -> str:
    """Return the block after the sentence with a file's name."""
    (text,) = re.findall(rf"`{re.escape(name)}`[^`]*\n\n```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return str(text)


def test_plugin_numbers_and_names_match_the_registry() -> None:
    registry = Registry.load()
    # Other tests of this process may have registered estimators.
    estimators = [each.plugin.name for each in registry.all("estimator") if each.distribution.startswith("rllm")]
    algorithms = README.partition("\n## Algorithms\n")[2]
    of_verl = re.findall(r"`(\w+)`", algorithms.partition("verl's own ")[2].partition("\n")[0])
    losses = [
        each.plugin.name
        for each in registry.all("loss")
        if each.plugin.name not in of_verl and each.distribution.startswith("rllm")
    ]

    assert f"{len(estimators) - 3} more advantage estimators" in README
    assert f"There are {len(KINDS)} kinds of plugin" in README
    named = {
        name for cell in re.findall(r"^\|(.*)\|$", algorithms, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    }
    assert named == {*estimators, *losses}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Write the files of the README, and the files of the pages that it links to."""
    files = {"train.jsonl": "json", "rewards.py": "python", "my_estimators.py": "python", "run.yaml": "yaml"}
    for name, language in (files | {"sums.yaml": "yaml"}).items():
        (tmp_path / name).write_text(_file(name, language))
    for name, page, language in (
        ("chats.jsonl", "fine-tune", "json"),
        ("pairs.jsonl", "preferences", "json"),
        ("my_agent.py", "your-agent", "python"),
    ):
        (tmp_path / name).write_text(blocks(f"docs/how-to/{page}.md", language)[0])
    return tmp_path


NOT_RUN = {
    "make test": "runs this test",
    "make dist": "`make test-wheels`",
    "pip install": "`make test-wheels`",
}
"""Commands of the pages that this test does not run, and the reason or the test."""
REMEDY = "Remove rllm.algorithm.eps_clip, or set rllm.algorithm.loss_fn=ppo."
NOT_HERE = "Qwen/Qwen3-0.6B|HuggingFaceTB/SmolLM2-135M-Instruct|./some-hf-directory"
"""Models that tests cannot download. The model `tiny` replaces them."""
DEMO = "rllm.trainer.total_batches=13"  # The README's `rllm why` shows the step with index 12.


def _words(command: str) -> list[str]:
    """Return the arguments of a short run of a command."""
    if command == "make demo":
        (command,) = re.findall(r"^\t\$\(BIN\)/(rllm train .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
        command += f" {DEMO}"
    elif "--dry-run" not in command:
        command = re.sub(NOT_HERE, "tiny", command)
        short = {"train": SHORT, "sft": SHORT[:1], "prefer": SHORT[:1], "eval": ("rllm.rollout.n_val=1",)}
        command = " ".join((command, *short.get(command.split()[1], ())))
    if "--backend verl" in command:
        command += " --dry-run"  # rllm_verl/tests/run trains.
    return shlex.split(command)[1:]


@pytest.mark.smoke
@pytest.mark.timeout(600)
def test_all_commands_run_in_one_directory(
    forked_rllm: Callable[..., Any], environ: dict[str, str], directory: Path
) -> None:
    """The commands of the README and of the tutorial run from top to bottom."""
    assert REMEDY in text_of(TUTORIAL)
    rows = re.findall(r"^\|[^`]*\| `(rllm [^`]*)` \|", README, re.MULTILINE)
    assert len(rows) == 12
    first, *others = commands("README.md")
    for command in (first, *rows, *others, TUTORIAL, *commands(TUTORIAL)):
        if command == TUTORIAL:
            (directory / "rewards.py").write_text(blocks(TUTORIAL, "python")[0])
            (directory / "sums.yaml").write_text(blocks(TUTORIAL, "yaml")[0])
        elif not command.startswith(tuple(NOT_RUN)):
            # The reports of runs take more time than the runs.
            environ["RLLM_BLOCK_PLUGINS"] = "" if command.startswith("rllm why") else "rllm-view"
            done = forked_rllm(*_words(command))
            refused = "eps_clip=0.3" in command
            # A short run may have faults, which rllm doctor reports with 1.
            expected = (2,) if refused else (0, 1) if command.startswith("rllm doctor") else (0,)
            assert done.returncode in expected, f"{command}\n{done.stderr}"
            assert not refused or REMEDY in done.stderr

    chosen = [read_config(run)["rllm"]["algorithm"]["adv_estimator"] for run in directory.glob("runs/*/guess-*")]
    assert sorted(chosen) == ["above_median", "grpo", "grpo", "grpo", "rloo", "rloo"]


def test_the_plugin_computes_what_its_docstring_says() -> None:
    names: dict[str, Any] = {}
    try:
        exec(_file("my_estimators.py", "python"), names)
    finally:
        forget_in_process("estimator", "above_median")
    rewards = np.array([0.0, 1.0, 1.0, 0.5, 0.0])
    inputs = SimpleNamespace(rewards=rewards, group_offsets=np.array([0, 3, 5]))

    assert names["above_median"](inputs, None).values.tolist() == [-1.0, 0.0, 0.0, 0.25, -0.25]
    assert rewards.tolist() == [0.0, 1.0, 1.0, 0.5, 0.0]
