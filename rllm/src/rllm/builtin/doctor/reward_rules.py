"""Rules about rewards: exploits, components, disagreement, length and text of responses."""

from __future__ import annotations

import numpy as np

from rllm.builtin.doctor.rule import Evidence, Remedy, Rule, evidence_of, examples, is_more_than, number, percent
from rllm.builtin.doctor.run_data import START, Column, Floats, Rollouts, RunData

LONGEST = 1000
"""Maximum number of characters of a response at its end that are searched for repetitions."""
SHORTEST = 9
"""Minimum number of characters of a response that repeats a piece."""
MOST_TEXTS = 1000
"""Maximum number of responses that are searched for repetitions."""
SIMILAR = 0.6
"""Share of equal characters in repetitions that are not exact."""
RARE = 0.001
"""Largest share of wrong responses among those with a full reward that is no fault. Labels may be wrong."""


def _within_groups(rows: Rollouts, values: Floats) -> Floats:
    """Return values minus the mean of their group."""
    index = rows.groups.index
    return values - (np.bincount(index, values) / np.bincount(index))[index]


def find_reward_without_solving(run: RunData) -> Evidence | None:
    return _exploits(run) or _reward_without_gain(run)


def _exploits(run: RunData) -> Evidence | None:
    """Return evidence that wrong responses get the reward of right responses."""
    if not run.has(Column.ROLLOUT_SOLVED):
        return None
    rows, groups = run.all_rollouts, run.all_rollouts.groups
    # Agents of the same episode have different rewards, and only the episode is solved.
    has_agents = len(set(zip(groups.step, groups.task, strict=True))) < len(groups.step)
    if has_agents or not (rows.solved == 1).any():
        return None
    full = rows.reward >= np.nanmedian(rows.reward[rows.solved == 1])
    wrong, count = rows.select(full & (rows.solved == 0)), int(full.sum())
    # A policy can learn a rare exploit in any later step.
    if not is_more_than(RARE, len(wrong), count):
        return None
    return Evidence(
        text=f"{len(wrong)} of {count} rollouts with the reward of a right response are wrong",
        steps=(int(wrong.step.min()), int(wrong.step.max())),
        rollouts=examples(wrong),
    )


def _reward_without_gain(run: RunData) -> Evidence | None:
    reward, solved = run.series(Column.REWARD), run.series(Column.SOLVED)
    gain, better = reward.compare_ends(), solved.compare_ends()
    if not gain.is_rise or better.after > 0.8 or len(solved) < len(reward) / 2:
        return None
    spread = float(reward.values.max() - reward.values.min())
    if gain.gain < 0.3 * spread or better.gain > 0.2 * gain.gain:
        return None
    rows = run.rollouts
    wrong = None if rows is None else rows.between(0.75, 1).select(rows.between(0.75, 1).solved == 0)
    best = None if wrong is None or not len(wrong) else wrong.select(wrong.reward >= np.nanquantile(wrong.reward, 0.9))
    return Evidence(
        text=f"the mean reward rises from {number(gain.before)} to {number(gain.after)}, and the share of solved "
        f"rollouts changes from {number(better.before)} to {number(better.after)}",
        steps=reward.span,
        rollouts=() if best is None else examples(best),
    )


def find_validation_against_training(run: RunData) -> Evidence | None:
    validation = run.series(Column.VALIDATION)
    if len(validation) < 3:
        return None
    reward = run.series(Column.REWARD)
    gain = reward.compare_ends()
    best = int(np.argmax(validation.values))
    change = float(validation.values[-1] - validation.values[0])
    loss = float(validation.values[best:].mean() - validation.values[best]) if best < len(validation) - 1 else 0.0
    spread = float(np.ptp(reward.values))
    if not gain.is_rise or gain.gain < 0.3 * spread or validation.values[-1] > 0.8:
        return None
    falls = loss < -0.1 * abs(float(validation.values[best])) and change < 0.25 * gain.gain
    if not falls and change > 0.1 * gain.gain:
        return None
    return evidence_of(
        f"the mean reward rises from {number(gain.before)} to {number(gain.after)}, and validation changes from "
        f"{number(float(validation.values[0]))} to {number(float(validation.values[-1]))}",
        validation,
    )


def _shares(rows: Rollouts) -> dict[str, float]:
    """Return each component's share of the variance of the reward within groups. The weights are fitted."""
    reward = _within_groups(rows, rows.reward)
    columns = {name: _within_groups(rows, values) for name, values in rows.components.items()}
    varying = {name: values for name, values in columns.items() if np.std(values) > 1e-9}
    if len(varying) < 2 or np.var(reward) < 1e-12:
        return {}
    matrix = np.stack(list(varying.values()), axis=1)
    weights, *_ = np.linalg.lstsq(matrix, reward, rcond=None)
    if np.var(reward - matrix @ weights) > 0.01 * np.var(reward):
        return {}
    return {
        name: float(weight * np.mean(values * reward) / np.var(reward))
        for weight, (name, values) in zip(weights, varying.items(), strict=True)
        if abs(weight) > 1e-6
    }


def find_dominant_component(run: RunData) -> Evidence | None:
    rows = run.all_rollouts
    complete = np.all([np.isfinite(each) for each in (rows.reward, rows.solved, *rows.components.values())], axis=0)
    known = rows.select(complete)
    if not len(known):
        return None
    shares = _shares(known)
    if len(shares) < 2:
        return None
    name, share = max(shares.items(), key=lambda item: item[1])
    solved = _within_groups(known, known.solved)
    component = _within_groups(known, known.components[name])
    if share < 0.8 or _correlation(component, solved) > 0.7:
        return None
    others = ", ".join(f"{other} {percent(each)}" for other, each in shares.items() if other != name)
    return Evidence(
        text=f"{name} causes {percent(share)} of the differences of rewards within groups, and {others}",
        steps=(int(known.step.min()), int(known.step.max())),
        rollouts=examples(known.select(known.components[name] == known.components[name].max())),
    )


def find_constant_component(run: RunData) -> Evidence | None:
    rows = run.all_rollouts
    for name, values in rows.components.items():
        known = values[np.isfinite(values)]
        if len(known) > 20 and np.ptp(known) == 0:
            text = f"{name} is {number(float(known[0]))} for each of {len(known)} rollouts"
            return Evidence(text=text, steps=(int(rows.step.min()), int(rows.step.max())), rollouts=examples(rows))
    return None


def find_rewards_disagree(run: RunData) -> Evidence | None:
    rows = run.all_rollouts.between(0.5, 1)
    split = rows.select(rows.disagreement == 1)
    share = len(split) / max(1, int(np.isfinite(rows.disagreement).sum()))
    if share < 0.05:
        return None
    means = ", ".join(f"{name} {number(float(np.nanmean(each)))}" for name, each in split.components.items())
    return Evidence(
        text=f"the rewards disagree on {percent(share)} of the responses, which have the mean rewards {means}",
        steps=(int(split.step.min()), int(split.step.max())),
        rollouts=examples(split),
    )


def _correlation(a: Floats, b: Floats) -> float:
    if np.std(a) < 1e-9 or np.std(b) < 1e-9:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def find_reward_follows_length(run: RunData) -> Evidence | None:
    length, solved = run.series(Column.LENGTH).compare_ends(), run.series(Column.SOLVED).compare_ends()
    rows = run.all_rollouts
    known = rows.select(np.isfinite(rows.reward) & np.isfinite(rows.length))
    correlation = _correlation(_within_groups(known, known.reward), _within_groups(known, known.length))
    if not length.is_rise or length.after < 1.2 * length.before or correlation < 0.3 or solved.after > 0.8:
        return None
    if run.has(Column.SOLVED) and solved.gain > 0.1:
        return None
    return Evidence(
        text=f"longer responses get more reward within groups (correlation {number(correlation)}), and the length "
        f"rises from {number(length.before)} to {number(length.after)}",
        steps=(int(known.step.min()), int(known.step.max())),
        rollouts=examples(known.select(known.length >= np.quantile(known.length, 0.9))),
    )


def find_length_without_reward(run: RunData) -> Evidence | None:
    series = run.series(Column.LENGTH)
    length, reward = series.compare_ends(), run.series(Column.REWARD).compare_ends()
    if not length.is_rise or length.after < 1.5 * length.before or reward.is_rise:
        return None
    return evidence_of(
        f"the mean length rises from {number(length.before)} to {number(length.after)}, and the mean reward "
        f"changes from {number(reward.before)} to {number(reward.after)}",
        series,
    )


def find_truncation(run: RunData) -> Evidence | None:
    late = run.series(Column.TRUNCATED).part(0.5, 1)
    if late.median < 0.2:
        return None
    text = f"{percent(late.median)} of the responses are cut off in the second half of the run"
    if not run.has(Column.ROLLOUT_TRUNCATED):
        is_harmless = late.median > 0.95 and run.series(Column.REWARD).compare_ends().is_rise
        return None if is_harmless or late.median < 0.3 else evidence_of(text, late)
    rows = run.all_rollouts.between(0.5, 1)
    cut, whole = rows.select(rows.truncated == 1), rows.select(rows.truncated == 0)
    if len(whole) > 20 and np.nanmean(cut.reward) >= np.nanmean(whole.reward):
        return None
    best = float(np.nanmax(rows.reward))
    if not len(cut) or 0 < best <= float(np.nanmin(rows.reward)):
        return None
    if best <= 0:
        text += f", and no reward is above {number(best)}"
        return Evidence(text=text, steps=late.span, rollouts=examples(cut)) if late.median > 0.9 else None
    removed = float(np.mean([str(each) not in ("None", "trained") for each in cut.outcome]))
    mean = float(np.nanmean(cut.reward))
    rate, other = float(np.mean(cut.reward >= best)), float(np.mean(whole.reward >= best)) if len(whole) else np.nan
    if len(whole) > 20 and rate > 0.5 * other and removed < 0.5:
        return None
    if len(whole) <= 20 and mean > 0.05 * best and removed < 0.5:
        return None
    if removed < 0.5 and _is_of_hard_tasks(cut, whole):
        return None
    text += f". Their mean reward is {number(mean)}"
    text += f", and {number(float(np.nanmean(whole.reward)))} for the others" if len(whole) else ""
    text += f". {percent(removed)} of them are not trained on" if removed > 0 else ""
    return Evidence(text=text, steps=late.span, rollouts=examples(cut))


def _is_of_hard_tasks(cut: Rollouts, whole: Rollouts) -> bool:
    """True if tasks explain most of the difference between responses that are cut off and others.

    Responses to tasks that the policy cannot solve may be long and wrong. Then others to the same task are wrong too.
    """
    means = {task: float(np.nanmean(whole.reward[whole.task == task])) for task in set(whole.task)}
    known = np.array([task in means for task in cut.task])
    if known.mean() < 0.5:
        return False
    within = np.mean([means[task] for task in cut.task[known]]) - np.nanmean(cut.reward[known])
    return bool(within < 0.5 * (np.nanmean(whole.reward) - np.nanmean(cut.reward)))


def repetition(text: str) -> float:
    """Return how exactly a text repeats one piece at its end, at least three times and in at least half of the text.

    It is the share of characters that equal the character one piece before. The best length of the piece is used.
    """
    if len(text) < SHORTEST or not text.strip():
        return 0.0
    end = np.frombuffer(text[-LONGEST:].encode("utf-32-le", "surrogatepass"), np.uint32)
    shares = [0.0]
    for size in range(1, len(end) // 3 + 1):
        repeated = end[-max(3 * size, len(end) // 2, SHORTEST - 1) :]
        shares.append(float(np.mean(repeated[:-size] == repeated[size:])))
    return max(shares)


def _some(rows: Rollouts) -> Rollouts:
    """Return at most `MOST_TEXTS` rollouts, evenly spaced."""
    return rows.select(np.arange(len(rows)) % max(1, -(-len(rows) // MOST_TEXTS)) == 0)


def find_repeating_responses(run: RunData) -> Evidence | None:
    rows = run.all_rollouts.select(np.array([each is not None for each in run.all_rollouts.text]))
    if not len(rows):
        return None
    late, first = _some(rows.between(0.75, 1)), _some(rows.between(0, START))
    exactness = np.array([repetition(str(each)) for each in late.text])
    loops, kind = exactness == 1, "the same piece"
    if loops.mean() < 0.1:
        # Lists and tables repeat similar pieces too, but they are right, or the first policy also writes them.
        loops, kind = (exactness >= SIMILAR) & (late.solved != 1), "a similar piece"
        others = np.array([repetition(str(each)) < SIMILAR for each in first.text])
        if not all(is_more_than(0.5, int(each.sum()), len(each)) for each in (loops, others)):
            return None
    text = f"{percent(loops.mean())} of the responses repeat {kind} until their end"
    return Evidence(
        text=text, steps=(int(late.step.min()), int(late.step.max())), rollouts=examples(late.select(loops))
    )


def find_empty_responses(run: RunData) -> Evidence | None:
    rows = run.all_rollouts.select(np.array([each is not None for each in run.all_rollouts.text]))
    empty = np.array([not str(each).strip() for each in rows.text])
    if not len(rows) or empty.mean() < 0.1:
        return None
    return Evidence(
        text=f"{percent(empty.mean())} of the responses are empty",
        steps=(int(rows.step.min()), int(rows.step.max())),
        rollouts=examples(rows.select(empty)),
    )


ROLLOUTS = frozenset({Column.ROLLOUT_REWARD})
COMPONENTS = ROLLOUTS | {Column.ROLLOUT_COMPONENTS}
REWARD_RULES = (
    Rule(
        name="truncation",
        title="Responses are cut off before they can be right.",
        needs=frozenset({Column.TRUNCATED, Column.REWARD}),
        find=find_truncation,
        shows=(Column.TRUNCATED, Column.LENGTH),
        remedy=Remedy(
            rllm="data.max_response_length, or a shorter answer format in the prompt",
            trl="max_completion_length, or mask_truncated_completions",
            verl="data.max_response_length",
            prime_rl="orchestrator.train.sampling.max_completion_tokens, or seq_len",
        ),
    ),
    Rule(
        name="reward_follows_length",
        title="The reward grows with the length of the response instead of its quality.",
        needs=ROLLOUTS | {Column.ROLLOUT_LENGTH, Column.LENGTH},
        find=find_reward_follows_length,
        shows=(Column.LENGTH, Column.REWARD, Column.SOLVED),
        remedy=Remedy(
            rllm="the reward: remove the advantage of long responses, or add the reward `length` with a target",
            trl="reward_funcs: remove the advantage of long responses",
            verl="the reward function, or reward_model.overlong_buffer",
            prime_rl="the rewards, or orchestrator.algo.length_penalty",
        ),
        min_steps=8,
    ),
    Rule(
        name="dominant_component",
        title="One reward decides almost everything, and it does not reward right answers.",
        needs=COMPONENTS | {Column.ROLLOUT_SOLVED},
        find=find_dominant_component,
        remedy=Remedy(
            rllm="the weights in rllm.reward",
            trl="reward_weights",
            verl="the sum in the reward function",
            prime_rl="the weights of the rewards",
        ),
    ),
    Rule(
        name="rewards_disagree",
        title="A reward rejects responses that a different reward accepts.",
        needs=COMPONENTS | {Column.ROLLOUT_DISAGREEMENT},
        find=find_rewards_disagree,
        remedy=Remedy(
            rllm="the wrong reward: read these responses, then run `rllm reward check`",
            trl="the wrong one of reward_funcs: read these responses",
            verl="the reward function: read these responses",
        ),
    ),
    Rule(
        name="validation_against_training",
        title="The training reward rises, and validation does not.",
        needs=frozenset({Column.VALIDATION, Column.REWARD}),
        find=find_validation_against_training,
        shows=(Column.VALIDATION, Column.REWARD),
        remedy=Remedy(
            rllm="the reward, if responses with a high reward are wrong. Otherwise use more tasks or fewer epochs",
        ),
        min_steps=10,
    ),
    Rule(
        name="reward_without_solving",
        title="Wrong responses get a high reward.",
        needs=frozenset({Column.REWARD, Column.SOLVED}),
        find=find_reward_without_solving,
        shows=(Column.REWARD, Column.SOLVED),
        remedy=Remedy(rllm="the reward: read these responses, which are wrong and have a high reward"),
        unless=frozenset({"reward_follows_length", "dominant_component", "rewards_disagree"}),
        min_steps=10,
    ),
    Rule(
        name="repeating_responses",
        title="Responses repeat the same piece until they are cut off.",
        needs=ROLLOUTS | {Column.ROLLOUT_TEXT},
        find=find_repeating_responses,
        remedy=Remedy(
            rllm="the reward of such responses, and data.max_response_length",
            trl="the reward of such responses, or repetition_penalty",
            prime_rl="the reward of such responses",
        ),
    ),
    Rule(
        name="empty_responses",
        title="Responses are empty.",
        needs=ROLLOUTS | {Column.ROLLOUT_TEXT},
        find=find_empty_responses,
        remedy=Remedy(
            rllm="the prompt and the chat template (`rllm config explain model.name`), and stop strings",
            prime_rl="the prompt and the chat template",
        ),
        min_steps=1,
    ),
    Rule(
        name="length_without_reward",
        title="Responses get longer, and the reward does not rise.",
        needs=frozenset({Column.LENGTH, Column.REWARD}),
        find=find_length_without_reward,
        shows=(Column.LENGTH, Column.REWARD),
        remedy=Remedy(
            rllm="rllm.algorithm.loss_agg_mode=seq-mean-token-sum-norm, or the reward `length`",
            trl="loss_type=dr_grpo, or a reward for length",
            verl="actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm",
            prime_rl="orchestrator.algo.length_penalty",
        ),
        unless=frozenset({"reward_follows_length"}),
        min_steps=8,
    ),
    Rule(
        name="constant_component",
        title="A reward never varies, so it has no effect.",
        needs=COMPONENTS,
        find=find_constant_component,
        remedy=Remedy(
            rllm="rllm.reward: correct this reward, or remove it",
            trl="reward_funcs",
            verl="the reward function",
            prime_rl="the rewards of the environment",
        ),
        unless=frozenset({"tasks_too_hard", "tasks_too_easy"}),
    ),
)
