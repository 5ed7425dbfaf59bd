"""Rules about the whole run: whether it learns, and where its time goes."""

from __future__ import annotations

import numpy as np

from rllm.builtin.doctor.rule import Evidence, Remedy, Rule, evidence_of, number, percent
from rllm.builtin.doctor.run_data import START, Column, RunData, Series

GENERATION = ("generate", "rollout", "gen", "wait", "update", "train", "actor", "forward_backward")
"""Parts of the names of stages that are expected to take most of a step."""


def _is_solved(run: RunData) -> bool:
    """Return True if most rollouts are solved in the second half of the run, in which the reward cannot rise much."""
    series = run.series(Column.SOLVED)
    return bool(len(series)) and series.part(0.5, 1).median > 0.8


def find_reward_fell(run: RunData) -> Evidence | None:
    series = run.series(Column.REWARD)
    width = max(3, len(series) // 8)
    means = np.convolve(series.values, np.ones(width) / width, mode="valid")
    best = int(np.argmax(means))
    last, spread = float(means[-1]), float(np.ptp(means))
    noise = float(np.std(np.diff(series.values)) / np.sqrt(2)) / np.sqrt(width)
    rest = len(means) - best
    if rest < max(width, 0.1 * len(series)) or spread <= 0 or means[best] - last < max(0.4 * spread, 6 * noise):
        return None
    fall = Series(series.steps[best:], series.values[best:])
    return evidence_of(f"the mean reward falls from {number(float(means[best]))} to {number(last)}", fall)


def find_no_learning(run: RunData) -> Evidence | None:
    series = run.series(Column.REWARD)
    change = series.compare_ends()
    if change.z > 3 or _is_solved(run):
        return None
    return evidence_of(f"the mean reward is {number(change.before)} before and {number(change.after)} after", series)


def find_plateau(run: RunData) -> Evidence | None:
    series = run.series(Column.REWARD)
    whole, late = series.compare_ends(), series.part(0.5, 1)
    change = late.compare_ends(1 / 2)
    if not whole.is_rise or _is_solved(run) or series.part(0.75, 1).compare_ends(1 / 2).is_rise:
        return None
    # The run may improve slowly, unless the upper bound of its gain is small.
    first = series.part(0, START).median
    if change.gain + 2 * change.error > 0.2 * (change.after - first):
        return None
    text = f"the mean reward rose from {number(first)} to {number(change.before)}, and then only to "
    return evidence_of(text + number(change.after), late)


def find_slow_stage(run: RunData) -> Evidence | None:
    total = run.series(Column.STEP_SECONDS).values.sum()
    for name, seconds in run.stages.items():
        known = seconds[np.isfinite(seconds)]
        if any(part in name for part in GENERATION) or not len(known):
            continue
        if total > 0 and known.sum() > 0.5 * total:
            text = f"the stage {name} takes {percent(float(known.sum() / total))} of the time of all steps"
            return Evidence(text=text, steps=(max(0, int(run.steps[0])), int(run.steps[-1])))
    return None


def find_slower_steps(run: RunData) -> Evidence | None:
    total, tokens = run.series(Column.STEP_SECONDS), run.series(Column.TOKENS_PER_SECOND)
    stages = {name: Series(run.steps, seconds).where(np.isfinite(seconds)) for name, seconds in run.stages.items()}
    stages = {name: each for name, each in stages.items() if each.values.sum() > 0.2 * total.values.sum()}
    for name, series in stages.items() or [("a step", total)]:
        before, after = series.part(0.1, 0.4).median, series.part(0.8, 1).median
        # On a busy machine, some steps take longer. A leak slows down each step more than the steps before it.
        ranks = np.argsort(np.argsort(series.values))
        if len(series) < 10 or after < 2 * before or np.corrcoef(ranks, np.arange(len(series)))[0, 1] < 0.85:
            continue
        rates = tokens.part(0.1, 0.4).median, tokens.part(0.8, 1).median
        if rates[1] < 0.7 * rates[0]:
            text = f"{name} takes {number(before)} s at first and {number(after)} s at the end, and tokens per second "
            return evidence_of(f"{text}fall from {number(rates[0])} to {number(rates[1])}", series)
    return None


FLAT = frozenset(
    {
        "missing_rewards", "failed_rollouts", "identical_rollouts", "unused_rollouts", "tasks_too_easy",
        "tasks_too_hard", "stuck_tasks", "dead_groups", "truncation", "reward_follows_length", "dominant_component",
        "not_finite", "update_too_large", "kl_explosion", "clipping", "entropy_collapse", "entropy_too_high",
        "learning_rate_ended", "update_too_small", "reward_fell", "solved_tasks", "length_without_reward",
        "old_tokens", "gradient_spikes", "constant_reward", "useless_critic",
    }
)  # fmt: skip
"""Rules that explain a flat reward."""
RUN_RULES = (
    Rule(
        name="reward_fell",
        title="The reward has fallen after its best steps.",
        needs=frozenset({Column.REWARD}),
        find=find_reward_fell,
        shows=(Column.REWARD,),
        remedy=Remedy(
            rllm="training.learning_rate (lower). Evaluate a checkpoint from before the fall",
            trl="learning_rate (lower), or resume from a checkpoint before the fall",
            verl="actor_rollout_ref.actor.optim.lr (lower), or resume from a checkpoint before the fall",
            prime_rl="trainer.optim.lr (lower), or resume from a checkpoint before the fall",
        ),
        min_steps=12,
    ),
    Rule(
        name="plateau",
        title="The reward has stopped rising, and tasks are not solved.",
        needs=frozenset({Column.REWARD}),
        find=find_plateau,
        shows=(Column.REWARD, Column.SOLVED),
        remedy=Remedy(
            rllm="rllm.algorithm.kl_beta (lower), rllm.algorithm.entropy.coeff, rllm.rollout.n, or other tasks",
            trl="beta (lower), num_generations, or other tasks",
            verl="actor_rollout_ref.actor.kl_loss_coef (lower), actor_rollout_ref.rollout.n, or other tasks",
            prime_rl="orchestrator.group_size, or other tasks",
        ),
        unless=FLAT,
        min_steps=60,
    ),
    Rule(
        name="no_learning",
        title="The reward does not rise.",
        needs=frozenset({Column.REWARD}),
        find=find_no_learning,
        shows=(Column.REWARD,),
        remedy=Remedy(
            rllm="training.learning_rate (3 times higher or lower), rllm.algorithm.entropy.coeff (lower), or the "
            "reward: see docs/how-to/debug-learning.md",
            trl="learning_rate (3 times higher or lower), or the reward functions",
            verl="actor_rollout_ref.actor.optim.lr (3 times higher or lower), or the reward function",
            prime_rl="trainer.optim.lr (3 times higher or lower), or the reward",
        ),
        unless=FLAT,
        min_steps=20,
    ),
    Rule(
        name="slow_stage",
        title="A stage other than sampling and training takes most of the time.",
        needs=frozenset({Column.STAGE_SECONDS, Column.STEP_SECONDS}),
        find=find_slow_stage,
        shows=(Column.STEP_SECONDS,),
        remedy=Remedy(rllm="the code of this stage, such as the reward. See docs/how-to/size-a-run.md"),
    ),
    Rule(
        name="slower_steps",
        title="Steps take longer and longer for the same tokens.",
        needs=frozenset({Column.TOKENS_PER_SECOND, Column.STEP_SECONDS}),
        find=find_slower_steps,
        shows=(Column.STEP_SECONDS, Column.TOKENS_PER_SECOND),
        remedy=Remedy(rllm="the reward or environment, which slows down. See time/… of the first and last steps"),
        min_steps=10,
    ),
)
