"""The report that `rllm rescore` prints: the episodes and rules, then tables."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence

import click
import numpy as np

from rllm.cli import print_table
from rllm_core.algorithms.filtering import masked_reasons
from rllm_view.rescoring.rescore import NO_REJECTION, Rescored
from rllm_view.rescoring.scores import ScoredGroup
from rllm_view.rescoring.setups import label_of
from rllm_view.rescoring.summary import Agreement, Reproduction, RoleSummary, SetupMetrics, reproduction_of


def print_report(result: Rescored, summaries: Sequence[RoleSummary], n_groups: int) -> None:
    """Print a rescoring; `n_groups` groups with every trajectory."""
    for line in _preamble(result):
        _say(line)
    if not summaries:
        _say("\nNo step leaves anything to train on.")
        return
    _print_metrics(summaries)
    for summary in summaries:
        for metrics in summary.setups:
            _print_differences(summary, metrics)
    if n_groups:
        _print_groups(result, n_groups)


def _preamble(result: Rescored) -> Iterator[str]:
    source, rules, config = result.source, result.rules, result.rules.config.rllm
    steps = "one step" if len(result.steps) == 1 else f"{len(result.steps)} steps"
    yield f"{sum(step.episodes for step in result.steps)} episodes of {steps} in {source.path}"
    origin = (
        f"the config of {source.run_folder}"
        if source.run_folder
        else "rllm-core's defaults, for want of a run's config"
    )
    yield f"estimated step by step with {origin}; reference: {result.setups[0].label}"
    masked: list[str] = []
    if "compact_filter" not in rules.left_out:
        masked = sorted(reason.value for reason in masked_reasons(config))
        masked += ["truncated answers"] if config.mask_truncated_samples else []
    stepwise = config.stepwise_advantage
    yield (
        f"applied: grouping {rules.grouping.registered.qualified_name}; "
        f"missing rewards: {config.algorithm.on_missing_reward}; "
        f"masked: {', '.join(masked) or 'nothing'}; rejection: {rules.rejection.registered.qualified_name}"
        + ("; advantages that came with groups are kept" if config.algorithm.use_precomputed_advantage else "")
        + ("; advantages divided by turns" if stepwise.enable and stepwise.normalize_by_steps else "")
    )
    if result.own_left_out:
        yield f"the run's own estimators are left out: {result.own_left_out}"
    if config.rejection_sample.enable and NO_REJECTION == rules.rejection.plugin.name != config.rejection_sample.mode:
        yield f"the run rejected groups, and here all count; as in the run: --rejection {config.rejection_sample.mode}"
    if result.third_party_stages:
        yield f"warning: stages of the run that were not replayed: {', '.join(result.third_party_stages)}"
    for step in result.steps:
        if step.skip_reason:
            yield f"step {step.step} has nothing to train on: {step.skip_reason.replace('_', ' ')}"
    if (reproduction := reproduction_of(result)) is not None and reproduction.steps:
        yield _reproduced(reproduction)


def _reproduced(reproduction: Reproduction) -> str:
    text = f"the run's own advantages come out as in its metrics in {reproduction.equal} of {reproduction.steps} steps"
    if (first := reproduction.first_deviation) is None:
        return text
    return f"warning: {text}; first in step {first.step}, {first.metric}: {first.logged} there, {first.replayed} here"


def _print_metrics(summaries: Sequence[RoleSummary]) -> None:
    rows = [
        (
            summary.role,
            metrics.estimator,
            f"{metrics.groups_without_signal} of {summary.groups}",
            f"{metrics.mean_absolute:.3f}",
            *(("", "", "reference") if metrics.agreement is None else _agreement(metrics.agreement)),
        )
        for summary in summaries
        for metrics in summary.setups
    ]
    headings = ("role", "estimator", "no signal", "mean |A|", "signs changed", "flipped", "correlation")
    click.echo()
    print_table(headings, rows, bold=1)


def _agreement(agreed: Agreement) -> tuple[str, str, str]:
    correlation = "none" if agreed.correlation is None else _signed(agreed.correlation)
    return _percent(agreed.signs.changed), _percent(agreed.signs.flipped), correlation


def _print_differences(summary: RoleSummary, metrics: SetupMetrics) -> None:
    """Print the changed signs and the largest differences of a setup that is not the reference."""
    if metrics.agreement is None:
        return
    reference, signs = summary.setups[0].estimator, metrics.agreement.signs
    _say(f"\nRole {summary.role}, {metrics.estimator} instead of {reference}:")
    if signs.changed:
        _say(
            f"{_percent(signs.flipped)} of the trajectories change their sign, {_percent(signs.lost)} change to 0, "
            f"{_percent(signs.gained)} change from 0."
        )
    rows = [
        (
            entry.group,
            entry.trajectory,
            f"{entry.reward:.3f}",
            _signed(entry.reference),
            _signed(entry.other),
        )
        for entry in metrics.agreement.largest
    ]
    if rows:
        print_table(("largest differences: group", "trajectory", "reward", reference, metrics.estimator), rows)
    else:
        _say("no difference")


def _print_groups(result: Rescored, n_groups: int) -> None:
    for group in _most_different(result.groups, n_groups):
        _say(
            f"\nGroup {group.name}: {len(group.members)} trajectories, reward {group.reward_mean:.3f} "
            f"(std {group.reward_std:.3f}), {group.lengths.min()} to {group.lengths.max()} tokens"
        )
        labels = [label_of(setup.estimators.get(group.role)) for setup in result.setups]
        print_table(("trajectory", "reward", "tokens", *labels), list(_trajectories(group)))
    left = len(result.groups) - n_groups
    if left > 0:
        _say(f"\n{left} more groups: --groups N lists N of them, --json has all.")


def _trajectories(group: ScoredGroup) -> Iterator[tuple[str, ...]]:
    """One row per trajectory; those that are alike in everything shown share one."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for index, member in enumerate(group.members):
        advantages = (_advantage(column[index]) for column in group.advantages)
        shown = (f"{group.rewards[index]:.3f}", str(group.lengths[index]), *advantages)
        alike.setdefault(shown, []).append(member.name)
    for shown, names in alike.items():
        yield (names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else ""), *shown)


def _most_different(groups: Sequence[ScoredGroup], n_groups: int) -> list[ScoredGroup]:
    """Return the groups with the largest differences between setups, in the order of steps.

    With one setup, return the groups with the largest advantages.
    """

    def distance(group: ScoredGroup) -> float:
        against = group.advantages[0] if len(group.advantages) > 1 else 0.0
        return float(np.nan_to_num(np.abs(group.advantages - against)).max())

    chosen = sorted(range(len(groups)), key=lambda index: -distance(groups[index]))[:n_groups]
    return [groups[index] for index in sorted(chosen)]


def _say(text: str) -> None:
    """In a terminal without cutting words in two; elsewhere one line stays one line."""
    if sys.stdout.isatty():
        text = click.wrap_text(text, shutil.get_terminal_size().columns, subsequent_indent="  ")
    click.echo(text)


def _advantage(value: float) -> str:
    return "no token" if np.isnan(value) else _signed(value)


def _signed(value: float) -> str:
    """Three decimals and a sign; without one where that is 0."""
    shown = f"{value:+.3f}"
    return shown[1:] if float(shown) == 0 else shown


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
