"""Rules about groups without differences, and about rollouts that are missing, unused or all the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rllm.builtin.doctor.rule import (
    EXAMPLES,
    Evidence,
    Remedy,
    Rule,
    evidence_of,
    examples,
    is_more_than,
    number,
    percent,
)
from rllm.builtin.doctor.run_data import START, Column, Groups, Rollouts, RunData

MOST = 0.75
"""Share of groups or rollouts that is most of them."""
USUAL_SIZE = 8
"""Usual number of rollouts of a group."""


def _wrong(groups: Groups, worst: float) -> NDArray[np.bool_]:
    """True if all rollouts of a group have the same reward and none is solved."""
    unsolved = np.where(np.isnan(groups.solved), groups.low <= worst, groups.solved == 0)
    return groups.is_equal & unsolved & (groups.size > 1)


def _right(groups: Groups, worst: float) -> NDArray[np.bool_]:
    """True if all rollouts of a group have the same reward and are solved."""
    solved = np.where(np.isnan(groups.solved), groups.low > worst, groups.solved == 1)
    return groups.is_equal & solved & (groups.size > 1)


def _worst(run: RunData) -> float:
    """Return the reward of a wrong response, for runs that do not record which rollouts are solved."""
    return min(float(np.nanmin(run.all_rollouts.reward)), 0.0)


def _frequent(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name, _ in Counter(names).most_common(EXAMPLES))


def _of_groups(rows: Rollouts, mask: NDArray[np.bool_], text: str) -> Evidence:
    """Return evidence with the tasks and rollouts of the groups at which `mask` is True."""
    groups = rows.groups
    chosen = rows.select(mask[groups.index])
    return Evidence(
        text=text,
        steps=(int(rows.step.min()), int(rows.step.max())),
        tasks=_frequent([str(task) for task in groups.task[mask]]),
        rollouts=examples(chosen),
    )


def find_constant_reward(run: RunData) -> Evidence | None:
    rows, late = run.all_rollouts, run.all_rollouts.between(0.75, 1)
    values, counts = np.unique(late.reward[np.isfinite(late.reward)], return_counts=True)
    if not len(values) or counts.max() < 0.95 * counts.sum():
        return None
    value = float(values[np.argmax(counts)])
    solved = float(np.mean(late.solved))
    has_value = [late.reward[late.solved == each] == value for each in (0, 1)]
    if all(map(len, has_value)):
        # If most responses are right, most rewards are equal, and wrong responses have a different reward.
        is_constant = all(is_more_than(0.5, int(each.sum()), len(each)) for each in has_value)
    else:
        is_constant = float(np.nanmin(rows.reward)) < value < float(np.nanmax(rows.reward))
    if not is_constant:
        return None
    text = f"{percent(counts.max() / counts.sum())} of the rewards are {number(value)} in the last quarter of the steps"
    text += f", and {percent(solved)} of these rollouts are solved" if np.isfinite(solved) else ""
    return Evidence(text=text, steps=(int(late.step.min()), int(late.step.max())), rollouts=examples(late))


def find_tasks_too_hard(run: RunData) -> Evidence | None:
    late = run.all_rollouts.between(0.5, 1)
    wrong = _wrong(late.groups, _worst(run))
    # If the first policy solves tasks and a later policy does not, the cause is a different fault.
    first = _wrong(run.all_rollouts.between(0, START).groups, _worst(run))
    if min(first.mean(), wrong.mean(), _wrong(run.all_rollouts.groups, _worst(run)).mean()) < MOST:
        return None
    low, high = float(np.nanmin(late.reward)), float(np.nanmax(late.reward))
    rewards = f"every reward is {number(low)}" if low == high else f"rewards are {number(low)} to {number(high)}"
    return _of_groups(late, wrong, f"all rollouts are wrong in {percent(wrong.mean())} of the groups, and {rewards}")


def find_tasks_too_easy(run: RunData) -> Evidence | None:
    early = run.all_rollouts.between(0, 0.2)
    right = _right(early.groups, _worst(run))
    if right.mean() < MOST:
        return None
    return _of_groups(early, right, f"all rollouts are right in {percent(right.mean())} of the first groups")


def find_solved_tasks(run: RunData) -> Evidence | None:
    late = run.all_rollouts.between(0.4, 1)
    right = _right(late.groups, _worst(run))
    if right.mean() < 0.95:
        return None
    share = _right(run.all_rollouts.groups, _worst(run)).mean()
    return _of_groups(late, right, f"all rollouts are right in {percent(share)} of the run's groups")


def find_stuck_tasks(run: RunData) -> Evidence | None:
    if run.series(Column.REWARD).part(0.5, 1).compare_ends(1 / 2).is_rise:
        return None
    late = run.all_rollouts.between(0.5, 1)
    groups, wrong = late.groups, _wrong(late.groups, _worst(run))
    tasks = {str(task) for task in groups.task}
    # If a task was solved before, the policy has unlearned it, which is a different fault.
    every = run.all_rollouts.groups
    solvable = {str(task) for task in every.task[~_wrong(every, _worst(run))]}
    often = {task for task, count in Counter(map(str, groups.task)).items() if count > 2}
    stuck = sorted((tasks - solvable) & often)
    if len(stuck) < 0.3 * len(tasks) or wrong.all():
        return None
    is_stuck = np.isin(groups.task.astype(str), stuck)
    text = f"{len(stuck)} of {len(tasks)} tasks never have a right rollout, and the reward does not rise anymore"
    return _of_groups(late, is_stuck, text)


def _small_groups(rows: Rollouts) -> Evidence | None:
    """Return evidence that groups are too small to contain right and wrong rollouts of the same task."""
    groups = rows.groups
    _, index = np.unique(groups.task.astype(str), return_inverse=True)
    rates = np.bincount(index, groups.solved * groups.size) / np.bincount(index, groups.size)
    is_mixed = np.abs(rates[index] - 0.5) <= 0.4
    is_dead = is_mixed & groups.is_equal
    if is_mixed.mean() < 1 / 3:
        return None
    known = rates[index][is_mixed]
    usual = float(np.mean(known**USUAL_SIZE + (1 - known) ** USUAL_SIZE))
    if not is_more_than(2 * usual, int(is_dead.sum()), int(is_mixed.sum())):
        return None
    text = f"the rewards are equal in {percent(is_dead.sum() / is_mixed.sum())} of the groups of tasks that are "
    text += f"sometimes solved. With {USUAL_SIZE} rollouts, it would be {percent(usual)}"
    return _of_groups(rows, is_dead, text)


def find_dead_groups(run: RunData) -> Evidence | None:
    late = run.series(Column.ZERO_ADVANTAGE).part(0.5, 1)
    if run.has(Column.ROLLOUT_REWARD):
        rows = run.all_rollouts.between(0.5, 1)
        wrong = _wrong(rows.groups, _worst(run))
        if wrong.mean() >= 0.5:
            return _of_groups(rows, wrong, f"all rollouts are wrong in {percent(wrong.mean())} of the groups")
        if run.has(Column.ROLLOUT_SOLVED) and (small := _small_groups(run.all_rollouts.between(0.75, 1))):
            return small
    solved = run.series(Column.SOLVED).part(0.75, 1).median
    if late.median < 0.5 or solved > 0.8 or run.series(Column.REWARD).compare_ends().is_rise:
        return None
    return evidence_of(f"{percent(late.median)} of the advantages are 0 in the second half of the run", late)


def find_identical_rollouts(run: RunData) -> Evidence | None:
    early = run.all_rollouts.between(0, 0.2)
    texts: dict[int, set[str]] = {}
    for group, text in zip(early.groups.index, early.text, strict=True):
        texts.setdefault(int(group), set()).add(str(text))
    same = np.array([len(texts[index]) == 1 for index in range(len(early.groups.size))])
    same &= early.groups.size > 1
    if same.mean() < 0.9:
        return None
    return _of_groups(early, same, f"all responses are equal in {percent(same.mean())} of the first groups")


def find_missing_rewards(run: RunData) -> Evidence | None:
    series = run.series(Column.MISSING_REWARDS)
    bad = series.where(series.values > 0)
    if len(bad) < max(1, 0.02 * len(series)):
        return None
    text = f"rewards are missing in {len(bad)} of {len(series)} steps, up to {number(bad.values.max())} in one step"
    return evidence_of(text, bad)


def find_failed_rollouts(run: RunData) -> Evidence | None:
    series = run.series(Column.FAILED)
    bad = series.where(series.values > 0)
    if series.values.mean() < 0.05:
        return None
    rows = run.rollouts
    failed = None if rows is None else rows.select(np.isin(rows.outcome, ["error", "timeout"]))
    return Evidence(
        text=f"{percent(series.values.mean())} of the rollouts end with an error or a timeout",
        steps=bad.span,
        rollouts=() if failed is None else examples(failed),
    )


def find_unused_rollouts(run: RunData) -> Evidence | None:
    rows = run.all_rollouts.select(np.array([each is not None for each in run.all_rollouts.outcome]))
    rules = Counter(str(rule) for rule in rows.outcome if str(rule) != "trained" and "reject/all_" not in str(rule))
    share = sum(rules.values()) / len(rows)
    if share < 0.5:
        return None
    rule, count = rules.most_common(1)[0]
    chosen = rows.select(rows.outcome == rule)
    return Evidence(
        text=f"{percent(share)} of the rollouts are not used, {percent(count / len(rows))} because of {rule}",
        steps=(int(chosen.step.min()), int(chosen.step.max())),
        rollouts=examples(chosen),
    )


def find_unused_tasks(run: RunData) -> Evidence | None:
    observed = run.series(Column.OBSERVED_TASKS)
    if len(observed):
        if observed.values[-1] >= 0.9 or observed.part(0.5, 1).compare_ends(1 / 2).is_rise:
            return None
        return evidence_of(f"{percent(1 - observed.values[-1])} of the tasks were never drawn", observed.part(0.9, 1))
    if run.expected_tasks is None or run.rollouts is None:
        return None
    tasks = {str(task) for task in run.rollouts.task}
    if len(tasks) >= 0.9 * run.expected_tasks:
        return None
    return Evidence(
        text=f"{len(tasks)} tasks were drawn in an epoch of {run.expected_tasks} tasks",
        steps=(max(0, int(run.steps[0])), int(run.steps[-1])),
    )


ROLLOUTS = frozenset({Column.ROLLOUT_REWARD})
GROUP_RULES = (
    Rule(
        name="missing_rewards",
        title="Rollouts have no reward.",
        needs=frozenset({Column.MISSING_REWARDS}),
        find=find_missing_rewards,
        shows=(Column.MISSING_REWARDS,),
        remedy=Remedy(rllm="run the reward on these responses: `rllm reward check`", verl="check the reward function"),
        min_steps=1,
    ),
    Rule(
        name="failed_rollouts",
        title="Many rollouts fail.",
        needs=frozenset({Column.FAILED}),
        find=find_failed_rollouts,
        shows=(Column.FAILED,),
        remedy=Remedy(
            rllm="read the errors of these rollouts. For timeouts, raise the time limit of the workflow",
            prime_rl="read the errors of these rollouts in rollouts/step_…/train/all",
        ),
        min_steps=1,
    ),
    Rule(
        name="identical_rollouts",
        title="All rollouts of a task are identical, so the sampler's seed has no effect.",
        needs=ROLLOUTS | {Column.ROLLOUT_TEXT},
        find=find_identical_rollouts,
        remedy=Remedy(
            rllm="sampling.train.temperature (above 0), and sampling.train.top_k (not 1)",
            trl="temperature (above 0), top_k (not 1)",
            verl="actor_rollout_ref.rollout.temperature (above 0), actor_rollout_ref.rollout.top_k (not 1)",
            prime_rl="orchestrator.train.sampling.temperature (above 0)",
        ),
    ),
    Rule(
        name="unused_rollouts",
        title="The update does not use most rollouts.",
        needs=ROLLOUTS | {Column.ROLLOUT_OUTCOME},
        find=find_unused_rollouts,
        remedy=Remedy(rllm="rllm.compact_filtering and rllm.rejection_sample, for the rule of the evidence"),
    ),
    Rule(
        name="constant_reward",
        title="Right and wrong responses get the same reward.",
        needs=ROLLOUTS,
        find=find_constant_reward,
        shows=(Column.REWARD, Column.REWARD_STD),
        remedy=Remedy(
            rllm="the reward, which returns a constant: run `rllm reward check`",
            trl="the reward functions, which return a constant",
            verl="the reward function, which returns a constant",
            prime_rl="the rewards, which return a constant",
        ),
        min_steps=8,
    ),
    Rule(
        name="tasks_too_easy",
        title="Every rollout solves most tasks from the start, so they teach nothing.",
        needs=ROLLOUTS,
        find=find_tasks_too_easy,
        remedy=Remedy(
            rllm="check the reward on wrong responses, then use harder tasks or rllm.sampler=drop_solved",
            trl="check the reward functions on wrong responses, then use a harder dataset",
            verl="check the reward function on wrong responses, then use harder data",
            prime_rl="check the rewards on wrong responses, then use harder tasks",
        ),
    ),
    Rule(
        name="tasks_too_hard",
        title="No rollout of most tasks is right, so there is no signal.",
        needs=ROLLOUTS,
        find=find_tasks_too_hard,
        remedy=Remedy(
            rllm="run the reward on a right response, then give partial rewards, easier tasks or rllm.rollout.n",
            trl="run the reward functions on a right response, then use easier tasks or num_generations",
            verl="run the reward on a right response, then use easier tasks or actor_rollout_ref.rollout.n",
            prime_rl="run the rewards on a right response, then use easier tasks or orchestrator.group_size",
        ),
    ),
    Rule(
        name="stuck_tasks",
        title="Some tasks are never solved, while the others are learned.",
        needs=ROLLOUTS | {Column.REWARD},
        find=find_stuck_tasks,
        remedy=Remedy(
            rllm="check the reward of these tasks, then raise rllm.rollout.n or use rllm.sampler=difficulty",
            trl="check the reward of these tasks, then raise num_generations",
            verl="check the reward of these tasks, then raise actor_rollout_ref.rollout.n",
            prime_rl="check the reward of these tasks, then raise orchestrator.group_size",
        ),
        unless=frozenset({"tasks_too_hard"}),
        min_steps=12,
    ),
    Rule(
        name="dead_groups",
        title="The rollouts of many groups have equal rewards, so they have no gradient.",
        needs=frozenset({Column.ZERO_ADVANTAGE, Column.REWARD}),
        find=find_dead_groups,
        shows=(Column.ZERO_ADVANTAGE, Column.REWARD_STD),
        remedy=Remedy(
            rllm="rllm.rollout.n, or partial rewards, or rllm.rejection_sample.mode=dynamic",
            trl="num_generations, or partial rewards",
            verl="actor_rollout_ref.rollout.n, or algorithm.filter_groups.enable=true",
            prime_rl="orchestrator.group_size, or partial rewards",
        ),
        unless=frozenset({"tasks_too_hard", "tasks_too_easy", "stuck_tasks", "solved_tasks", "truncation"}),
        min_steps=8,
    ),
    Rule(
        name="solved_tasks",
        title="The run continues on tasks that it has solved.",
        needs=ROLLOUTS,
        find=find_solved_tasks,
        remedy=Remedy(
            rllm="stop earlier (rllm.trainer.total_batches), add harder tasks, or rllm.sampler=drop_solved",
            trl="max_steps, or harder tasks",
            verl="trainer.total_training_steps, or harder tasks",
            prime_rl="max_steps, or harder tasks",
        ),
        unless=frozenset({"tasks_too_easy"}),
        min_steps=20,
    ),
    Rule(
        name="tasks_never_drawn",
        title="Some tasks are never drawn.",
        needs=ROLLOUTS,
        find=find_unused_tasks,
        shows=(Column.OBSERVED_TASKS,),
        remedy=Remedy(rllm="rllm.sampler=uniform, or the options of the sampler"),
    ),
)
