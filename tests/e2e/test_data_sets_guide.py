"""docs/how-to/data-sets.md, unchanged."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from documents import blocks, text_of

from rllm.planning.planner import dataset_of_file
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry
from rllm_data.columns import ANSWERS, LAYOUTS, HfParams
from rllm_data.source import BUILDERS

PAGE = "docs/how-to/data-sets.md"
GUIDE = text_of(PAGE)
SHORT = ("rllm.trainer.total_batches=1", "rllm.rollout.n=2")


@pytest.fixture
def environ(environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    return environ | {"HF_DATASETS_CACHE": str(tmp_path / "cache")}


@pytest.mark.long
def test_the_first_section_runs_from_top_to_bottom(
    rllm_here: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (script,) = blocks(PAGE, "python")
    (tmp_path / "make_sums.py").write_text(script)
    (tmp_path / "sums.yaml").write_text(blocks(PAGE, "yaml")[0])
    section = GUIDE.partition("\n## ")[0]
    commands = re.findall(r"^    ((?:python|rllm) .*)$", section, re.MULTILINE)
    assert commands == [
        "python make_sums.py",
        "rllm config validate sums.yaml",
        "rllm train --config sums.yaml",
    ]

    subprocess.run([sys.executable, "make_sums.py"], cwd=tmp_path, check=True, timeout=200)
    for command in commands[1:]:
        words = command.split()[1:]
        done = rllm_here(*words, *(SHORT if "train" in words else ()))
        assert done.returncode == 0, done.stderr
        assert "warning" not in done.stderr

    (metrics,) = tmp_path.glob("runs/*/*/metrics.jsonl")
    validations = [step for step in map(json.loads, metrics.read_text().splitlines()) if "val/sums/pass@1" in step]
    assert len(validations) == 2


def test_every_other_configuration_is_one_of_the_dataset() -> None:
    _, *others = blocks(PAGE, "yaml")
    for text in others:
        options = yaml.safe_load(text)["data"]["train_dataset"]
        assert options.pop("name") == "hf"
        HfParams(**options)


def test_the_tables_are_those_of_the_code() -> None:
    formats = re.findall(r"^\| `(\w+)` \| `(\w+)`", GUIDE, re.MULTILINE)
    assert [name for name, _ in formats] == list(LAYOUTS)
    assert [first for _, first in formats] == [layout.needs[0][0] for layout in LAYOUTS.values()]
    assert f"the first of {', '.join(f'`{name}`' for name in ANSWERS)} |" in GUIDE
    assert all(f"`train{suffix}`" in GUIDE or f"`{suffix}`" in GUIDE for suffix in BUILDERS)


def test_the_names_of_the_guide_choose_the_dataset() -> None:
    chosen = re.findall(r"data\.train_dataset=(\S+)", GUIDE)
    assert chosen == ["train.parquet", "hf:my_directory", "hf:openai/gsm8k"]
    registry = Registry.load(allow={"rllm-data"})
    paths = [choose(registry, "dataset", dataset_of_file(registry, name, "key"), "key").params.path for name in chosen]
    assert paths == ["train.parquet", "my_directory", "openai/gsm8k"]
