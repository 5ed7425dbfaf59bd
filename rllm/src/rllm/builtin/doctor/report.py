"""The report on a run: findings for people, and JSON for programs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import click

from rllm.builtin.doctor.rule import Diagnosis, Fault, false_alarms
from rllm_core.notices import harmless

SCHEMA_VERSION = 1


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Print the findings in order of harm, and the rules that lack data."""
    run = diagnosis.run
    count = len(diagnosis.findings)
    heading = f"{count} finding{'s' * (count != 1)}" if count else "no finding"
    click.echo(f"{run.name} ({run.source}, {run.step_count} steps): {heading} by {len(diagnosis.checked)} rules")
    for index, finding in enumerate(diagnosis.findings, 1):
        click.echo(f"\n{index}. {finding.rule.name}: {finding.rule.title}")
        for name, value in _facts(diagnosis, finding):
            click.echo(f"   {name:<12} {harmless(value)}")
    lacking: dict[str, list[str]] = {}
    for rule, columns in diagnosis.skipped:
        reason = ", ".join(column.value for column in columns) if columns else f"{rule.min_steps} steps"
        lacking.setdefault(reason, []).append(rule.name)
    if lacking:
        click.echo(f"\n{len(diagnosis.skipped)} rules cannot be applied:")
        for reason, names in lacking.items():
            click.echo(f"  without {reason}: {', '.join(names)}")


def _facts(diagnosis: Diagnosis, finding: Fault) -> Iterator[tuple[str, str]]:
    evidence, run = finding.evidence, diagnosis.run
    yield "evidence", f"steps {evidence.steps[0]} to {evidence.steps[1]}: {evidence.text}"
    if evidence.tasks:
        yield "tasks", ", ".join(_short(task) for task in evidence.tasks)
    for command in commands(diagnosis, finding):
        yield "look", command
    if names := [run.names[column] for column in finding.rule.shows if column in run.names]:
        yield "metrics", ", ".join(names)
    yield "change", finding.rule.remedy.text(run.source)
    yield "false alarms", alarms(finding)


def commands(diagnosis: Diagnosis, finding: Fault) -> list[str]:
    """Return commands that show the evidence. Empty for runs of other frameworks."""
    run = diagnosis.run
    if run.source != "rllm":
        return []
    path = shlex.quote(run.name)
    shown = [f"rllm episode {path} {step} {shlex.quote(uid)}" for step, uid in finding.evidence.rollouts]
    return [*shown, *([] if shown else [f"rllm view {path}"])]


def alarms(finding: Fault) -> str:
    """Return the measured false alarms of a finding's rule."""
    measured = false_alarms().get(finding.rule.name)
    if measured is None or not measured.runs:
        return "not measured, because the healthy runs lack this data"
    return f"{measured.alarms} in {measured.runs} runs without a fault"


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return all results as JSON data."""
    run = diagnosis.run
    return {
        "schema_version": SCHEMA_VERSION,
        "run": run.name,
        "source": run.source,
        "steps": run.step_count,
        "findings": [
            {
                "rule": each.rule.name,
                "title": each.rule.title,
                "evidence": each.evidence.text,
                "first_step": each.evidence.steps[0],
                "last_step": each.evidence.steps[1],
                "tasks": list(each.evidence.tasks),
                "rollouts": [{"step": step, "uid": uid} for step, uid in each.evidence.rollouts],
                "metrics": [run.names[column] for column in each.rule.shows if column in run.names],
                "look": commands(diagnosis, each),
                "change": each.rule.remedy.text(run.source),
                "false_alarms": _rate(each),
            }
            for each in diagnosis.findings
        ],
        "checked": [rule.name for rule in diagnosis.checked],
        "skipped": [
            {"rule": rule.name, "lacks": [column.value for column in columns], "needs_steps": rule.min_steps}
            for rule, columns in diagnosis.skipped
        ],
    }


def _rate(finding: Fault) -> dict[str, int] | None:
    measured = false_alarms().get(finding.rule.name)
    return None if measured is None else {"alarms": measured.alarms, "runs": measured.runs}


def _short(task: str) -> str:
    line = " ".join(task.split())
    return line if len(line) <= 40 else f"{line[:39]}…"
