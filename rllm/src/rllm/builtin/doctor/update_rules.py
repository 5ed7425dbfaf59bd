"""Rules about updates: size, clipping, entropy, gradients, learning rate, and tokens that do not fit the weights."""

from __future__ import annotations

import numpy as np

from rllm.builtin.doctor.rule import Evidence, Remedy, Rule, evidence_of, number, percent
from rllm.builtin.doctor.run_data import START, Change, Column, RunData, Series

RATE = Remedy(
    rllm="training.learning_rate (3 to 10 times lower), training.num_epochs",
    trl="learning_rate (3 to 10 times lower), num_iterations",
    verl="actor_rollout_ref.actor.optim.lr (3 to 10 times lower), actor_rollout_ref.actor.ppo_epochs",
    prime_rl="trainer.optim.lr (3 to 10 times lower)",
)
LARGE = 0.3
"""KL divergence per token of an update that is too large, in nats."""


def _solved_at_end(run: RunData) -> float:
    """Return the share of solved rollouts in the last quarter, 0 if it is not recorded."""
    series = run.series(Column.SOLVED)
    return series.part(0.75, 1).median if len(series) else 0.0


def find_not_finite(run: RunData) -> Evidence | None:
    broken = {column: steps for column, steps in run.not_finite.items() if column in (Column.LOSS, Column.GRADIENT)}
    if not broken:
        return None
    column, steps = min(broken.items(), key=lambda item: item[1][0])
    return Evidence(text=f"{column.value} is NaN or infinite in {len(steps)} steps", steps=(steps[0], steps[-1]))


def find_sampler_mismatch(run: RunData) -> Evidence | None:
    series = run.series(Column.MISMATCH)
    age = run.metrics.get(Column.STALENESS)
    if age is not None:
        fresh = ~(age > 0)[np.isin(run.steps, series.steps)]
        series = series.where(fresh)
    if len(series) < 3 or series.median < 0.02:
        return None
    return evidence_of(
        f"log-probs of fresh tokens differ by {number(series.median)} nats between sampler and trainer", series
    )


def find_old_tokens(run: RunData) -> Evidence | None:
    age, samples = run.series(Column.STALENESS), run.series(Column.EFFECTIVE_SAMPLES)
    late = age.part(0.5, 1)
    share = samples.part(0.5, 1).median if len(samples) else 1.0
    if late.median < 2.5 and not (late.median > 0 and share < 0.5):
        return None
    text = f"the weights made {number(late.median)} updates between sampling and training on a token"
    return evidence_of(text + (f". {percent(1 - share)} of the samples count for nothing" if share < 0.9 else ""), late)


def find_update_too_large(run: RunData) -> Evidence | None:
    steps = run.series(Column.KL_STEP)
    large = steps.where(steps.values > LARGE)
    if len(large) < max(2, 0.05 * len(steps)):
        return None
    text = (
        f"updates change the policy by a KL divergence of up to {number(large.values.max())} per token, and by more "
        f"than {number(LARGE)} in {len(large)} of {len(steps)} steps"
    )
    return evidence_of(text, large)


def find_kl_explosion(run: RunData) -> Evidence | None:
    series = run.series(Column.KL_REFERENCE)
    early, late = series.part(0, 0.5), series.part(0.75, 1)
    if late.median < max(1.0, 3 * early.median) and late.median < 5:
        return None
    if _solved_at_end(run) > 0.8:
        return None
    return evidence_of(f"the KL divergence per token rises to {number(late.median)}", late)


def _per_signal(run: RunData, column: Column) -> Series:
    """Return a metric divided by the share of tokens with an advantage, at steps with more than a tenth of them."""
    if run.updates_skip_zero_advantages:
        return run.series(column)
    values = run.metrics[column]
    signal = 1 - np.nan_to_num(run.metrics.get(Column.ZERO_ADVANTAGE, np.zeros(len(run.steps))))
    mask = np.isfinite(values) & (signal > 0.1)
    return Series(run.steps[mask], values[mask] / signal[mask])


def find_clipping(run: RunData) -> Evidence | None:
    shares = _per_signal(run, Column.CLIPPED)
    if len(shares) < 3 or shares.median < 0.28:
        return None
    return evidence_of(f"the loss clips {percent(min(shares.median, 1))} of the tokens with an advantage", shares)


def find_gradient_spikes(run: RunData) -> Evidence | None:
    # The gradient of a step with few advantages is small, so the next step with many of them is no spike.
    series = _per_signal(run, Column.GRADIENT)
    values = series.values
    if len(values) < 10 or series.median <= 0:
        return None
    width = 10
    around = np.array([np.median(values[max(0, i - width) : i + width + 1]) for i in range(len(values))])
    spikes = series.where((values > 10 * np.maximum(around, 0.1 * series.median)) & (values > 5 * series.median))
    # The norm is clipped, so a few spikes neither lower the reward nor explain a flat reward.
    if len(spikes) < max(2, 0.05 * len(series)):
        return None
    norms = run.series(Column.GRADIENT)
    largest = norms.where(np.isin(norms.steps, spikes.steps)).values.max()
    text = f"{len(spikes)} of {len(norms)} steps have a gradient norm of up to {number(largest)}, and the median is "
    return evidence_of(text + number(norms.median), spikes)


def find_entropy_collapse(run: RunData) -> Evidence | None:
    series = run.series(Column.ENTROPY)
    first, late = series.part(0, 0.1).median, series.part(0.75, 1)
    if first <= 0 or late.median > 0.1 * first or _solved_at_end(run) > 0.8:
        return None
    has_solved = run.has(Column.SOLVED)
    goal = run.series(Column.SOLVED if has_solved else Column.REWARD)
    gain = float(goal.part(0.75, 1).values.mean() - goal.part(0.5, 0.75).values.mean())
    if gain > 0.1 * (1.0 if has_solved else float(np.ptp(goal.values))):
        return None
    reward = run.series(Column.REWARD).part(0.75, 1)
    early = series.where(series.values < 0.1 * first)
    text = (
        f"entropy falls from {number(first)} to {number(late.median)} nats, at a mean reward of {number(reward.median)}"
    )
    return evidence_of(text, early)


def find_entropy_too_high(run: RunData) -> Evidence | None:
    series = run.series(Column.ENTROPY)
    # A large entropy bonus raises the entropy in a few steps, so the first and the last third may be equal.
    first, late = series.part(0, START).median, series.part(2 / 3, 1).median
    change, reward = series.compare_ends(), run.series(Column.REWARD).compare_ends()
    if late < max(1.1 * first, first + Change.LIMIT * change.noise, 0.1) or reward.is_rise:
        return None
    text = f"entropy rises from {number(first)} to {number(late)} nats, and the mean reward changes "
    return evidence_of(text + f"from {number(reward.before)} to {number(reward.after)}", series)


def find_ended_learning_rate(run: RunData) -> Evidence | None:
    series = run.series(Column.LEARNING_RATE)
    peak = float(series.values.max())
    if peak <= 0:
        return None
    after = Series(series.steps, series.values).part(float(np.argmax(series.values)) / len(series), 1)
    ended = after.where(after.values < 0.01 * peak)
    if len(ended) < max(3, 0.2 * len(series)) or _solved_at_end(run) > 0.9:
        return None
    return evidence_of(f"the learning rate is below 1 % of its peak in the last {len(ended)} steps", ended)


def find_update_too_small(run: RunData) -> Evidence | None:
    series, gradient = run.series(Column.KL_STEP), run.series(Column.GRADIENT)
    reward = run.series(Column.REWARD).compare_ends()
    if series.median > 1e-6 or gradient.median < 1e-6 or reward.is_rise or _solved_at_end(run) > 0.8:
        return None
    text = (
        f"one step changes the policy by a KL divergence of {number(series.median)} per token, and the mean reward is "
    )
    return evidence_of(text + f"{number(reward.before)} before and {number(reward.after)} after", series)


def find_prefix_breaks(run: RunData) -> Evidence | None:
    series = run.series(Column.PREFIX_BREAKS)
    if series.median < 0.5:
        return None
    return evidence_of(
        f"{number(series.median)} turns of a rollout change the text before them, the median of steps", series
    )


def find_useless_critic(run: RunData) -> Evidence | None:
    late = run.series(Column.EXPLAINED_VARIANCE).part(0.5, 1)
    if late.median > 0 or _solved_at_end(run) > 0.9:
        return None
    return evidence_of(f"the critic's explained variance is {number(late.median)} in the second half of the run", late)


def find_kl_at_start(run: RunData) -> Evidence | None:
    positions = sorted(run.token_kl)
    values = np.array([run.token_kl[position] for position in positions])
    first = values[: max(1, len(values) // 16)]
    rest = values[len(first) :]
    if len(values) < 8 or first.mean() < max(0.1, 2 * rest.mean()) or first.min() <= rest.max():
        return None
    text = f"the KL divergence is {number(first.mean())} at the first {len(first)} tokens of a response, and "
    text += f"{number(rest.mean())} after them"
    return Evidence(text=text, steps=(max(0, int(run.steps[0])), int(run.steps[-1])))


UPDATE_RULES = (
    Rule(
        name="not_finite",
        title="The loss or the gradient is not a number, so the weights are lost.",
        needs=frozenset({Column.GRADIENT}),
        find=find_not_finite,
        shows=(Column.GRADIENT, Column.LOSS),
        remedy=RATE,
        min_steps=1,
    ),
    Rule(
        name="sampler_mismatch",
        title="Sampler and trainer compute different log-probs for the same tokens.",
        needs=frozenset({Column.MISMATCH}),
        find=find_sampler_mismatch,
        shows=(Column.MISMATCH,),
        remedy=Remedy(
            rllm="the dtype of the engine, or rllm.algorithm.rollout_correction.tis_mode=token",
            trl="vllm_importance_sampling_correction=true, and the dtype of vLLM",
            verl="algorithm.rollout_correction.rollout_is=token, and the dtype of the rollout",
        ),
    ),
    Rule(
        name="update_too_large",
        title="Updates change the policy too much.",
        needs=frozenset({Column.KL_STEP}),
        find=find_update_too_large,
        shows=(Column.KL_STEP, Column.REWARD),
        remedy=RATE,
    ),
    Rule(
        name="kl_explosion",
        title="The policy leaves the reference model.",
        needs=frozenset({Column.KL_REFERENCE}),
        find=find_kl_explosion,
        shows=(Column.KL_REFERENCE, Column.REWARD),
        remedy=Remedy(
            rllm="training.learning_rate (lower), rllm.algorithm.kl_beta (higher)",
            trl="learning_rate (lower), beta (higher)",
            verl="actor_rollout_ref.actor.optim.lr (lower), actor_rollout_ref.actor.kl_loss_coef (higher)",
        ),
        unless=frozenset({"update_too_large"}),
        min_steps=8,
    ),
    Rule(
        name="clipping",
        title="The loss clips so many tokens that updates lose their signal.",
        needs=frozenset({Column.CLIPPED}),
        find=find_clipping,
        shows=(Column.CLIPPED,),
        remedy=Remedy(
            rllm="training.num_epochs or training.num_minibatches (lower), training.learning_rate (lower), or "
            "rllm.algorithm.eps_clip (higher)",
            trl="num_iterations (lower), learning_rate (lower), or epsilon (higher)",
            verl="actor_rollout_ref.actor.ppo_epochs (lower), or actor_rollout_ref.actor.clip_ratio (higher)",
            prime_rl="trainer.optim.lr (lower), orchestrator.max_off_policy_steps (lower), or "
            "trainer.loss.dppo_mask_high (higher)",
        ),
    ),
    Rule(
        name="gradient_spikes",
        title="Some steps have a far larger gradient than the others.",
        needs=frozenset({Column.GRADIENT}),
        find=find_gradient_spikes,
        shows=(Column.GRADIENT,),
        remedy=Remedy(
            rllm="the reward of these steps (outliers), training.max_grad_norm (lower)",
            trl="the reward of these steps (outliers), max_grad_norm (lower)",
            verl="the reward of these steps (outliers), actor_rollout_ref.actor.grad_clip (lower)",
            prime_rl="the reward of these steps (outliers), trainer.optim.max_norm (lower)",
        ),
        min_steps=10,
    ),
    Rule(
        name="old_tokens",
        title="Updates train on tokens of much older weights.",
        needs=frozenset({Column.STALENESS}),
        find=find_old_tokens,
        shows=(Column.STALENESS, Column.EFFECTIVE_SAMPLES),
        remedy=Remedy(
            rllm="rllm.async_training.staleness_threshold (lower), rllm.algorithm.rollout_correction.tis_mode=token",
            prime_rl="orchestrator.max_off_policy_steps (lower)",
        ),
    ),
    Rule(
        name="entropy_collapse",
        title="The policy has stopped exploring before it solves the tasks.",
        needs=frozenset({Column.ENTROPY, Column.REWARD}),
        find=find_entropy_collapse,
        shows=(Column.ENTROPY, Column.REWARD),
        remedy=Remedy(
            rllm="rllm.algorithm.entropy.coeff (higher), rllm.algorithm.eps_clip_high (higher), training.learning_rate "
            "(lower)",
            trl="epsilon_high (higher), learning_rate (lower)",
            verl="actor_rollout_ref.actor.entropy_coeff (higher), actor_rollout_ref.actor.clip_ratio_high (higher)",
            prime_rl="trainer.optim.lr (lower), or trainer.loss.dppo_mask_high (higher)",
        ),
        min_steps=8,
    ),
    Rule(
        name="entropy_too_high",
        title="The policy becomes more random, and the reward does not rise.",
        needs=frozenset({Column.ENTROPY, Column.REWARD}),
        find=find_entropy_too_high,
        shows=(Column.ENTROPY, Column.REWARD),
        remedy=Remedy(
            rllm="rllm.algorithm.entropy.coeff (lower, or with decay_steps)",
            trl="entropy_coef (lower), learning_rate (lower)",
            verl="actor_rollout_ref.actor.entropy_coeff (lower)",
            prime_rl="trainer.optim.lr (lower)",
        ),
        unless=frozenset({"update_too_large", "tasks_too_hard"}),
        min_steps=8,
    ),
    Rule(
        name="useless_critic",
        title="The critic predicts worse than a constant.",
        needs=frozenset({Column.EXPLAINED_VARIANCE}),
        find=find_useless_critic,
        shows=(Column.EXPLAINED_VARIANCE,),
        remedy=Remedy(rllm="critic.learning_rate", trl="vf_coef", verl="critic.optim.lr, trainer.critic_warmup"),
        min_steps=8,
    ),
    Rule(
        name="kl_at_start",
        title="The first tokens of responses change far more than the others.",
        needs=frozenset({Column.TOKEN_KL}),
        find=find_kl_at_start,
        shows=(Column.KL_REFERENCE,),
        remedy=Remedy(rllm="the reward (it depends on the first tokens only), rllm.algorithm.kl_beta (higher)"),
    ),
    Rule(
        name="learning_rate_ended",
        title="The learning rate has reached its end long before the run.",
        needs=frozenset({Column.LEARNING_RATE}),
        find=find_ended_learning_rate,
        shows=(Column.LEARNING_RATE,),
        remedy=Remedy(
            rllm="training.lr_schedule=constant, or a schedule over the whole run",
            trl="lr_scheduler_type, max_steps",
            verl="actor_rollout_ref.actor.optim.total_training_steps",
            prime_rl="trainer.scheduler, max_steps",
        ),
        min_steps=10,
    ),
    Rule(
        name="update_too_small",
        title="Updates hardly change the policy.",
        needs=frozenset({Column.KL_STEP, Column.GRADIENT, Column.REWARD}),
        find=find_update_too_small,
        shows=(Column.KL_STEP, Column.GRADIENT),
        remedy=Remedy(
            rllm="training.learning_rate (3 to 10 times higher)",
            trl="learning_rate (3 to 10 times higher)",
            verl="actor_rollout_ref.actor.optim.lr (3 to 10 times higher)",
            prime_rl="trainer.optim.lr (3 to 10 times higher)",
        ),
        unless=frozenset({"tasks_too_hard", "tasks_too_easy", "learning_rate_ended"}),
        min_steps=10,
    ),
    Rule(
        name="prefix_breaks",
        title="Turns change the text before them, so each turn becomes its own training row.",
        needs=frozenset({Column.PREFIX_BREAKS}),
        find=find_prefix_breaks,
        shows=(Column.PREFIX_BREAKS,),
        remedy=Remedy(rllm="rllm.accumulate_reasoning=true, or an agent that appends to its conversation"),
    ),
)
