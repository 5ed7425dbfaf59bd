"""`rllm reward check`: the responses that a reward accepts."""

from __future__ import annotations

import sys

import click

SHARE = click.FloatRange(0, 1)


@click.group()
def reward() -> None:
    """Check rewards before you train with them."""


@reward.command()
@click.argument("rewards", nargs=-1, required=True, metavar="REWARD...")
@click.option("--data", required=True, metavar="FILE|NAME", help="Rows with right answers, as in `rllm train`.")
@click.option("--rows", "count", default=50, show_default=True, type=click.IntRange(1), help="Number of rows to use.")
@click.option("--column", metavar="NAME", help="Column with the right answer.")
@click.option(
    "--answer",
    metavar="REGEX",
    callback=lambda context, option, value: _check_pattern(value),
    help="Pattern whose group is the answer in the column: 'is (.+)'. The default is the text after '####', or all.",
)
@click.option(
    "--format",
    "templates",
    multiple=True,
    metavar="TEXT",
    help="Format that your prompt requests, with {answer}. May be repeated. The default is nine formats.",
)
@click.option("--threshold", type=float, metavar="X", help="Smallest value of an accepted response.")
@click.option("--once", is_flag=True, help="Omit the second pass, for rewards that cost money.")
@click.option("--max-false-positives", type=SHARE, metavar="SHARE", help="Exit with 1 if more exploits are accepted.")
@click.option("--max-false-negatives", type=SHARE, metavar="SHARE", help="Exit with 1 if more answers are rejected.")
@click.option("--show", default=2, show_default=True, type=click.IntRange(0), help="Printed examples of each mistake.")
@click.option("--json", "is_json", is_flag=True, help="Print every response and its reward as JSON.")
def check(
    rewards: tuple[str, ...],
    data: str,
    count: int,
    column: str | None,
    answer: str | None,
    templates: tuple[str, ...],
    threshold: float | None,
    once: bool,
    max_false_positives: float | None,
    max_false_negatives: float | None,
    show: int,
    is_json: bool,
) -> int:
    """Show which responses each REWARD accepts. No model is used.

    The responses are made from the right answers in your data: in the formats that models write, and as exploits, such
    as two answers, a negation or an empty response.

    \b
    Check a reward by name, or your function:
      rllm reward check math --data val.jsonl
      rllm reward check rewards.py:score --data val.jsonl
    Give options as in a configuration, and compare two rewards:
      rllm reward check '{name: exact, column: solution}' rewards.py:score --data val.jsonl
    Use the format of your prompt:
      rllm reward check rewards.py:score --data val.jsonl --format '<answer>{answer}</answer>'
    Fail in continuous integration if an exploit is accepted, or a reward is missing:
      rllm reward check math --data val.jsonl --max-false-positives 0
    """
    import asyncio
    import json

    from rllm.builtin.reward_lab.report import as_json, print_disagreement, print_trial
    from rllm.builtin.reward_lab.rows import load_reward, read_rows
    from rllm.builtin.reward_lab.trial import try_reward

    formats = {template: template for template in templates}
    if wrong := [each for each in templates if "{answer}" not in each]:
        raise click.UsageError(f"--format {wrong[0]!r} has no {{answer}}.")
    trials = []
    for name in rewards:
        plan = load_reward(name, data, column)
        pending = try_reward(
            name,
            plan.rewards[0],
            read_rows(plan, column, answer, count),
            formats=formats,
            threshold=threshold,
            twice=not once,
            report=_show_progress,
        )
        trials.append(asyncio.run(pending))
        _show_progress("")
    if is_json:
        click.echo(json.dumps(as_json(trials), indent=1, ensure_ascii=False))
    else:
        for index, trial in enumerate(trials):
            click.echo("" if index == 0 else "\n", nl=False)
            print_trial(trial, show)
        print_disagreement(trials, show)
    bounds = {False: max_false_positives, True: max_false_negatives}
    is_above = any(
        bound is not None and trial.rate(is_right=is_right).value > bound
        for trial in trials
        for is_right, bound in bounds.items()
    )
    has_bound = any(bound is not None for bound in bounds.values())
    return int(is_above or any(trial.is_broken or (has_bound and trial.missing) for trial in trials))


def _check_pattern(pattern: str | None) -> str | None:
    """Return the pattern. Raise BadParameter if it is no regular expression, or has no group."""
    import re

    try:
        groups = 1 if pattern is None else re.compile(pattern).groups
    except re.error as error:
        raise click.BadParameter(f"{pattern!r} is no regular expression: {error}.") from error
    if not groups:
        raise click.BadParameter(f"{pattern!r} has no group. Put the answer into (parentheses).")
    return pattern


def _show_progress(text: str) -> None:
    """Show the progress on one line of a terminal. Show nothing if errors go to a file."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)
