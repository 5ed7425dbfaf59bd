"""The report on trials: tables and examples for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import click

from rllm.builtin.reward_lab.trial import Result, Trial
from rllm.evaluation.statistics import Estimate
from rllm_record.terminal import print_table

SCHEMA_VERSION = 1
_WIDTH = 100


def print_trial(trial: Trial, show: int) -> None:
    """Print the tables of a trial, and at most `show` examples of each kind of mistake."""
    rows = {each.case.row.number for each in trial.results}
    click.echo(f"reward {trial.name}: {len(trial.results)} responses to {len(rows)} rows")
    if any(each.score.correct is None for each in trial.results if each.score.value is not None):
        click.echo(f"A response is accepted from {trial.threshold:g} (--threshold).")
    if trial.missing:
        count, reason = len(trial.missing), trial.missing[0].score.feedback
        click.echo(f"warning: {count} of {len(trial.results)} responses have no reward, for example: {reason}")
    click.echo()
    print_table(("right answers", "accepted", "note"), list(_right_rows(trial)))
    click.echo(f"rejected right answers: {_percent(trial.rate(is_right=True))}\n")
    print_table(("must not be accepted", "accepted"), list(_exploit_rows(trial)))
    click.echo(f"accepted exploits: {_percent(trial.rate(is_right=False))}\n")
    for line in _remarks(trial):
        click.echo(line)
    for title, is_right in (("rejected", True), ("accepted", False)):
        _print_examples(title, trial.mistakes(is_right=is_right), show)


def print_disagreement(trials: Sequence[Trial], show: int) -> None:
    """Print how often each pair of rewards decides differently about the same response."""
    for one, other in combinations(trials, 2):
        both = _pairs(one, other)
        split = [pair for pair in both if pair[0].is_accepted(one.threshold) != pair[1].is_accepted(other.threshold)]
        click.echo(f"\n{one.name} and {other.name} disagree on {len(split)} of {len(both)} responses")
        for mine, theirs in split[:show]:
            click.echo(f"  {one.name} {_value(mine)}, {other.name} {_value(theirs)}: {_place(mine)}")


def as_json(trials: Sequence[Trial]) -> dict[str, Any]:
    """Return all results as JSON data."""
    return {
        "schema_version": SCHEMA_VERSION,
        "rewards": [
            {
                "reward": trial.name,
                "threshold": trial.threshold,
                "formats": dict(trial.formats),
                "false_negatives": _estimate(trial.rate(is_right=True)),
                "false_positives": _estimate(trial.rate(is_right=False)),
                "responses": [_response(trial, each) for each in trial.results],
            }
            for trial in trials
        ],
        "disagreements": [
            {
                "rewards": [one.name, other.name],
                "responses": len(both := _pairs(one, other)),
                "different": sum(a.is_accepted(one.threshold) != b.is_accepted(other.threshold) for a, b in both),
            }
            for one, other in combinations(trials, 2)
        ],
    }


def _right_rows(trial: Trial) -> Iterator[tuple[str, str, str]]:
    right = [each for each in trial.results if each.case.is_right]
    for name in dict.fromkeys(each.case.name for each in right):
        cases = [each for each in right if each.case.name == name]
        accepted = sum(each.is_accepted(trial.threshold) for each in cases)
        is_counted = any(each.case.format in trial.formats for each in cases)
        template = trial.formats.get(name, "").replace("\n", "\\n")
        yield name, f"{accepted} of {len(cases)}", template if is_counted else "not a format of this reward"


def _exploit_rows(trial: Trial) -> Iterator[tuple[str, str]]:
    cases = trial.select_cases(is_right=False)
    for name in dict.fromkeys(each.case.name for each in cases):
        named = [each for each in cases if each.case.name == name]
        yield name, f"{sum(each.is_accepted(trial.threshold) for each in named)} of {len(named)}"


def _remarks(trial: Trial) -> Iterator[str]:
    results = trial.results
    slowest = max(results, key=lambda each: each.seconds)
    yield f"slowest call: {slowest.seconds:.2f} s, {_place(slowest)}"
    if results[0].together is not None:
        different = [each for each in results if each.differs]
        yield f"different value if all are called at once: {len(different)} of {len(results)}"
        if different:
            yield f"  for example {_place(different[0])}"
    answers = {each.score.value for each in results if each.score.value is not None}
    if len(answers) == 1:
        yield f"warning: the reward is {answers.pop():g} for every response"


def _print_examples(title: str, mistakes: Sequence[Result], show: int) -> None:
    by_name: dict[str, list[Result]] = {}
    for each in mistakes:
        by_name.setdefault(each.case.name, []).append(each)
    for name, of_name in by_name.items():
        click.echo(f"\n{title}: {name}")
        for each in of_name[:show]:
            click.echo(f"  {_place(each)}\n    answer {each.case.row.answer!r}, reward {_value(each)}{_read(each)}")


def _place(result: Result) -> str:
    text = repr(result.case.text)
    return f"row {result.case.row.number}: {text if len(text) <= _WIDTH else f'{text[:_WIDTH]}…'}"


def _value(result: Result) -> str:
    return "missing" if result.score.value is None else f"{result.score.value:g}"


def _read(result: Result) -> str:
    return "" if result.score.extracted is None else f", read {result.score.extracted!r}"


def _percent(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.1%}"
    return f"{estimate.value:.1%} (95 % interval {estimate.low:.1%} to {estimate.high:.1%})"


def _estimate(estimate: Estimate) -> dict[str, float | None]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def _pairs(one: Trial, other: Trial) -> list[tuple[Result, Result]]:
    """Return the results of both rewards for the same responses."""
    key = {(each.case.row.number, each.case.text): each for each in other.results}
    return [(each, key[place]) for each in one.results if (place := (each.case.row.number, each.case.text)) in key]


def _response(trial: Trial, result: Result) -> dict[str, Any]:
    return {
        "row": result.case.row.number,
        "case": result.case.name,
        "format": result.case.format,
        "text": result.case.text,
        "answer": result.case.row.answer,
        "is_right": result.case.is_right,
        "is_counted": result.case.format in {"", *trial.formats},
        "is_accepted": result.is_accepted(trial.threshold),
        "reward": result.score.value,
        "extracted": result.score.extracted,
        "feedback": result.score.feedback,
        "seconds": result.seconds,
        "is_equal_at_once": None if result.together is None else not result.differs,
    }
