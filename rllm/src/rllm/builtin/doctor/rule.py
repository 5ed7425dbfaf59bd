"""`Rule`, and the evidence that it finds in a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from rllm.builtin.doctor.run_data import Column, Rollouts, RunData, Series, Source

EXAMPLES = 3
"""Maximum number of tasks and of rollouts that a finding lists."""
FALSE_ALARMS = Path(__file__).with_name("false_alarms.json")
"""Measured false alarms of each rule."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The values that make a rule report a fault, and where to see them."""

    text: str
    """The values, in one or two sentences."""
    steps: tuple[int, int]
    """First and last step with these values."""
    tasks: tuple[str, ...] = ()
    rollouts: tuple[tuple[int, str], ...] = ()
    """Step and uid of rollouts that show it."""


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """The setting to change, by framework."""

    rllm: str
    trl: str = ""
    verl: str = ""
    prime_rl: str = ""

    def text(self, source: Source) -> str:
        """Return the remedy for a framework. The text for rllm if the framework has no own text."""
        return {"trl": self.trl, "verl": self.verl, "prime-rl": self.prime_rl}.get(source, "") or self.rllm


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A fault of a run, and how to find it."""

    name: str
    title: str
    """The fault, in one sentence."""
    needs: frozenset[Column]
    find: Callable[[RunData], Evidence | None]
    """Returns the evidence of the fault. None if the run does not show it."""
    remedy: Remedy
    shows: tuple[Column, ...] = ()
    """Metrics whose curves show the fault."""
    unless: frozenset[str] = field(default_factory=frozenset)
    """Rules whose finding is the cause, so that this rule adds nothing."""
    min_steps: int = 3
    """Smallest number of steps at which the rule is meaningful."""

    def lacks(self, run: RunData) -> list[Column]:
        """Return the columns that the rule needs and the run does not have."""
        return [column for column in Column if column in self.needs and not run.has(column)]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of a run."""

    rule: Rule
    evidence: Evidence


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The results of all rules on one run."""

    run: RunData
    findings: Sequence[Fault]
    """In order of harm."""
    checked: Sequence[Rule]
    skipped: Sequence[tuple[Rule, Sequence[Column]]]
    """Rules that lack data, with the columns. Without columns, the run has too few steps."""


def diagnose(run: RunData, rules: Sequence[Rule]) -> Diagnosis:
    """Apply all rules to a run. The order of `rules` is the order of harm."""
    found: dict[str, Fault] = {}
    checked: list[Rule] = []
    skipped: list[tuple[Rule, Sequence[Column]]] = []
    for rule in rules:
        lacks = rule.lacks(run)
        if lacks or len(run.steps) < rule.min_steps:
            skipped.append((rule, lacks))
            continue
        checked.append(rule)
        evidence = rule.find(run)
        if evidence is not None:
            found[rule.name] = Fault(rule=rule, evidence=evidence)
    findings = [each for each in found.values() if not each.rule.unless & found.keys()]
    return Diagnosis(run=run, findings=findings, checked=checked, skipped=skipped)


@dataclass(frozen=True)
class FalseAlarms:
    """Number of findings of a rule in runs without a fault."""

    alarms: int
    runs: int
    """Number of runs that had the rule's data."""


@cache
def false_alarms() -> dict[str, FalseAlarms]:
    """Return the measured false alarms by rule. ``benchmarks/doctor.py`` writes the file."""
    counts = json.loads(FALSE_ALARMS.read_text(encoding="utf-8"))
    return {name: FalseAlarms(**each) for name, each in counts.items()}


def is_more_than(share: float, count: int, total: int) -> bool:
    """True if `count` of `total` independent cases show that more than a share of all cases have a property.

    This is the exact test of a binomial distribution. If the true share is not larger, it is True with a probability
    of at most 0.5 %.
    """
    from scipy.stats import binom

    return bool(binom.sf(count - 1, total, share) < 0.005)


def number(value: float) -> str:
    """Return a value for a sentence."""
    return f"{value:.3g}"


def percent(value: float) -> str:
    """Return a share for a sentence."""
    return f"{value:.0%}"


def examples(rows: Rollouts) -> tuple[tuple[int, str], ...]:
    """Return some rollouts with a name, the latest first, from different tasks if possible."""
    return tuple(_examples(rows))


def _examples(rows: Rollouts) -> Iterator[tuple[int, str]]:
    seen: set[str] = set()
    for row in np.argsort(-rows.step, kind="stable"):
        if len(seen) < EXAMPLES and rows.uid[row] and rows.task[row] not in seen:
            seen.add(rows.task[row])
            yield int(rows.step[row]), str(rows.uid[row])


def evidence_of(text: str, series: Series) -> Evidence:
    """Return evidence from a metric, at the steps of the series."""
    return Evidence(text=text, steps=series.span)
