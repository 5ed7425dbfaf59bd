"""The spine of the program names no objective and none of its metrics: it asks the chosen one."""

from __future__ import annotations

import re
from pathlib import Path

import rllm
from rllm_core.plugins.registry import Registry

SPINE = ("api", "cli", "conf", "config", "evaluation", "inspection", "planning", "rows", "runs", "tracking", "training")
COMMON = {"rl", "log", "stored"}
"""Names that are also English words or stages of every run."""


def test_spine_names_no_objective() -> None:
    names = {entry.name for entry in Registry.load().all("objective")} - COMMON
    assert {"sft", "prefer", "opd", "gkd", "echo"} <= names
    assert _lines_with(rf"""(?:["'`/]|--|rllm )(?:{"|".join(sorted(names))})\b(?!\()""") == []


def test_spine_names_no_metric_of_objectives() -> None:
    shown = {metric for entry in Registry.load().all("objective") for metric in entry.plugin.shown_metrics}
    assert {"distill/kl", "actor/target_divergence", "preference/accuracy"} <= shown
    families = {metric.partition("/")[0] for metric in shown} - {"actor"}
    assert _lines_with("|".join([*sorted(shown), *(f"{family}/" for family in sorted(families))])) == []


def _lines_with(pattern: str) -> list[str]:
    """Return the lines of the spine in which a regular expression occurs."""
    root = Path(rllm.__file__).parent
    return [
        f"{file.relative_to(root)}: {line.strip()}"
        for directory in SPINE
        for file in sorted((root / directory).rglob("*.py"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if re.search(pattern, line)
    ]
