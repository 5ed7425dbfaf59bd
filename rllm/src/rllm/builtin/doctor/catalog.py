"""All rules, in the order of harm: first those after which nothing is learned, then those that waste time."""

from __future__ import annotations

from rllm.builtin.doctor.group_rules import GROUP_RULES
from rllm.builtin.doctor.reward_rules import REWARD_RULES
from rllm.builtin.doctor.rule import Rule
from rllm.builtin.doctor.run_rules import RUN_RULES
from rllm.builtin.doctor.update_rules import UPDATE_RULES

ORDER = (
    "not_finite", "missing_rewards", "failed_rollouts", "sampler_mismatch", "identical_rollouts", "old_tokens",
    "update_too_large", "kl_at_start", "kl_explosion", "useless_critic", "entropy_too_high", "truncation",
    "unused_rollouts", "tasks_too_easy", "tasks_too_hard", "clipping", "dominant_component", "constant_reward",
    "reward_follows_length", "repeating_responses", "empty_responses", "rewards_disagree",
    "validation_against_training", "reward_without_solving", "gradient_spikes", "stuck_tasks", "entropy_collapse",
    "learning_rate_ended", "update_too_small", "reward_fell", "dead_groups", "length_without_reward",
    "constant_component", "plateau", "no_learning", "prefix_breaks", "tasks_never_drawn", "solved_tasks",
    "slow_stage", "slower_steps",
)  # fmt: skip
"""Names of the rules. A cause comes before its consequences."""
_BY_NAME = {rule.name: rule for rule in (*GROUP_RULES, *REWARD_RULES, *UPDATE_RULES, *RUN_RULES)}
RULES: tuple[Rule, ...] = tuple(_BY_NAME[name] for name in ORDER)
