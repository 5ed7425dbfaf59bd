"""The spine of the program names no objective: it asks the chosen one."""

from __future__ import annotations

import re
from pathlib import Path

import rllm
from rllm_core.plugins.registry import Registry

SPINE = ("api", "cli", "config", "evaluation", "inspection", "planning", "runs", "tracking", "training")
COMMON = {"rl", "log", "stored"}
"""Names that are also English words or stages of every run."""


def test_spine_names_no_objective() -> None:
    names = {entry.name for entry in Registry.load().all("objective")} - COMMON
    assert {"sft", "prefer", "opd", "gkd", "echo"} <= names
    named = re.compile(rf"""(?:["'`/]|--|rllm )(?:{"|".join(sorted(names))})\b(?!\()""")
    root = Path(rllm.__file__).parent
    lines = [
        f"{file.relative_to(root)}: {line.strip()}"
        for directory in SPINE
        for file in sorted((root / directory).rglob("*.py"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if named.search(line)
    ]
    assert lines == []
