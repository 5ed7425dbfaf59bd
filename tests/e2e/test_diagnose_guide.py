"""The page on `rllm doctor`: its example, its table of rules, and the observer."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from documents import blocks, text_of

from rllm.builtin.doctor.catalog import RULES
from rllm.builtin.doctor.rule import false_alarms

PAGE, DEBUG = "docs/how-to/diagnose-a-run.md", "docs/how-to/debug-learning.md"
SHORT = ("rllm.rollout.n=4", "data.train_batch_size=4")


def write_files(directory: Path) -> None:
    """Write the tasks and the rewards of the page on debugging, to which the example refers."""
    (directory / "train.jsonl").write_text(blocks(DEBUG, "json")[0])
    (directory / "rewards.py").write_text(blocks(DEBUG, "python")[0])


@pytest.mark.long
def test_example_prints_the_output_of_the_page(rllm_here: Any, tmp_path: Path) -> None:
    write_files(tmp_path)
    train, doctor = (shlex.split(line)[1:] for line in blocks(PAGE, "sh")[0].splitlines())
    trained = rllm_here(*train)
    done = rllm_here(*doctor)

    assert (trained.returncode, done.returncode) == (0, 1), trained.stderr
    shown = blocks(PAGE, "text")[0].splitlines()
    assert done.stdout.splitlines()[: len(shown)] == shown


@pytest.mark.long
def test_observer_stops_run_at_finding(rllm_here: Any, tmp_path: Path) -> None:
    write_files(tmp_path)
    words = shlex.split(blocks(PAGE, "sh")[0].splitlines()[0])[1:]
    observers = "rllm.trainer.observers=[{name: doctor, on_finding: stop, every: 4}]"
    done = rllm_here(*words, *SHORT, observers, "rllm.trainer.total_batches=9")

    assert done.returncode == 1
    assert "error[run-has-fault]: doctor: truncation: " in " ".join(done.stderr.split())
    (run,) = (tmp_path / "runs/rllm-training").iterdir()
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 4


@pytest.mark.long
def test_observer_warns_once_and_continues(rllm_here: Any, tmp_path: Path) -> None:
    write_files(tmp_path)
    words = shlex.split(blocks(PAGE, "sh")[0].splitlines()[0])[1:]
    observers = "rllm.trainer.observers=[{name: doctor, every: 4, ignore: [tasks_too_hard]}]"
    done = rllm_here(*words, *SHORT, observers, "rllm.trainer.total_batches=9")

    assert done.returncode == 0
    assert re.findall(r"warning: doctor: (\w+)", done.stderr) == ["truncation"]


def test_table_of_page_has_measured_alarms() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.*?) \|$", text_of(PAGE), re.MULTILINE)
    measured = {name: f"{each.alarms} of {each.runs}" if each.runs else "" for name, each in false_alarms().items()}

    assert rows == [(rule.name, rule.title, measured[rule.name]) for rule in RULES]


@pytest.mark.long
@pytest.mark.usefixtures("with_view")
def test_json_of_example_has_commands(rllm_here: Any, tmp_path: Path) -> None:
    write_files(tmp_path)
    train, doctor = (shlex.split(line)[1:] for line in blocks(PAGE, "sh")[0].splitlines())
    rllm_here(*train)
    (first, *_) = json.loads(rllm_here(*doctor, "--json").stdout)["findings"]

    assert rllm_here(*shlex.split(first["look"][0])[1:]).returncode == 0


def test_keys_of_remedies_exist() -> None:
    written = " ".join(rule.remedy.rllm for rule in RULES)
    keys = set(re.findall(r"\b(?:rllm|data|training|sampling|critic)\.[a-z_.]+\w", written))

    assert keys
    assert [key for key in sorted(keys) if f"## `{key}`" not in text_of("docs/reference/config.md")] == []
