"""The rows of `rllm prefer`, and the checks of its runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rllm.builtin.preferences.comparison import PreferParams, RewardModelParams
from rllm.builtin.supervised.objective import LOSS, ImitationObjective, check_no_rollouts
from rllm.planning.plan import RunPlan
from rllm.planning.problem import Problem, refused

if TYPE_CHECKING:
    from rllm.rows.example import Conversation, PlainText
    from rllm_core.contracts.backend import Backend
    from rllm_core.contracts.engine import RolloutEngine
    from rllm_core.contracts.renderer import Renderer
    from rllm_core.data.types import Episode, Task


class PreferenceObjective(ImitationObjective):
    """Learning from better and worse completions of a prompt. They are read and rendered as examples."""

    activity = "learning preferences"
    keeps_together = True

    @property
    def preference(self) -> PreferParams | RewardModelParams:
        """The loss and its options."""
        return next(stage.params for stage in self.plan.stages if isinstance(stage.params, PreferParams))

    def read(self, data: Mapping[str, Any]) -> list[Conversation | PlainText]:
        from rllm.builtin.preferences.rows import check_completions, read_preference

        completions = read_preference(data)
        check_completions(completions, self.preference.loss)
        return [*completions.values()]

    def used_columns(self, data: Mapping[str, Any]) -> tuple[str, ...]:
        from rllm.builtin.preferences.rows import used_columns

        return used_columns(data)

    def make_episodes(self, task: Task, renderer: Renderer) -> list[Episode]:
        from rllm.builtin.preferences.stages import make_completions

        return [make_completions(task, renderer, self.params)]

    async def validate(self, backend: Backend, engine: RolloutEngine, tasks: Sequence[Task]) -> dict[str, float]:
        from rllm.builtin.preferences.stages import validate_preferences

        size = self.plan.config.data.val_batch_size
        return await validate_preferences(backend, engine, tasks, size, self.params, self.preference)


class RewardModelObjective(PreferenceObjective):
    """Training of a reward model on better and worse completions of a prompt."""

    activity = "training a reward model"

    @property
    def params(self) -> RewardModelParams:  # type: ignore[override]
        return next(stage.params for stage in self.plan.stages if isinstance(stage.params, RewardModelParams))

    @property
    def preference(self) -> RewardModelParams:
        return self.params

    def read(self, data: Mapping[str, Any]) -> list[Conversation | PlainText]:
        from rllm.builtin.preferences.rows import read_margin

        read_margin(data)
        return super().read(data)

    def used_columns(self, data: Mapping[str, Any]) -> tuple[str, ...]:
        return (*super().used_columns(data), "margin")

    def check_rendered(self, example: Conversation | PlainText, renderer: Renderer) -> None:
        from rllm.builtin.preferences.stages import make_score_turn

        make_score_turn(example, renderer)

    def next_commands(self, checkpoint: str) -> list[str]:
        return [f"train a policy with it: rllm train ENV --reward model:{checkpoint}"]


REINFORCE = "rllm-core/reinforce"
PASSES = ("training.num_epochs", "actor_rollout_ref.actor.ppo_epochs")
"""Keys of the backends for the number of passes over a step's rows."""


def check_preferences(plan: RunPlan, params: PreferParams) -> Iterator[Problem]:
    """Check that an update follows the exact gradient of the preferences, which stage `prefer` computes before it."""
    yield from _check_one_gradient(plan)
    if params.loss == "kto" and plan.tasks_per_step == 1:
        yield refused(
            "too-few-tasks",
            "data.train_batch_size",
            "Loss kto compares the completions of different prompts, and data.train_batch_size is 1.",
            "Set data.train_batch_size to 2 or more.",
        )
    yield from _check_column(plan, "prefer", "ref_logprobs")


def check_reward_model(plan: RunPlan, params: RewardModelParams) -> Iterator[Problem]:
    """Check a run with stage `reward_model`: as `check_preferences`, and no part needs a policy."""
    yield from _check_column(plan, "reward_model", "scores")
    yield from _check_one_gradient(plan)
    for key in ("model.lora_rank", "rllm.rollout.engine"):
        if value := _value(plan, key):
            yield refused(
                "not-for-reward-models",
                key,
                f"{key} is {value}, and --loss reward_model trains all weights of a model that does not sample.",
                f"Remove {key}.",
            )


def _check_column(plan: RunPlan, stage: str, column: str) -> Iterator[Problem]:
    if column not in plan.backend.plugin.capabilities.columns:
        yield refused(
            "missing-estimator-input",
            "rllm.backend",
            f"Stage {stage!r} needs {column}, and backend {plan.backend.name!r} cannot fill that.",
            "Choose a different backend, such as --backend local.",
        )


def _check_one_gradient(plan: RunPlan) -> Iterator[Problem]:
    yield from check_no_rollouts(plan)
    needed: dict[str, tuple[Any, Any]] = {
        LOSS: (plan.losses.default.qualified_name, REINFORCE),
        "rllm.algorithm.loss_agg_mode": (plan.config.rllm.algorithm.loss_agg_mode, "token-sum"),
        "rllm.algorithm.loss_map": (len(plan.losses.by_role), 0),
        **{key: (_value(plan, key), 1) for key in (plan.backend.plugin.minibatches_key, *PASSES) if key},
    }
    for key, (value, wanted) in needed.items():
        if value not in (wanted, None):
            yield refused(
                "not-for-preferences",
                key,
                f"{key} is {value}, and preferences need {wanted}: each step follows one gradient of all its rows.",
                f"Remove {key}. Set data.train_batch_size to the number of rows of an optimizer step.",
            )


def _value(plan: RunPlan, key: str) -> Any:
    """Return the value of a backend's key. None if this backend has no such key."""
    try:
        return plan.composed.value(key)
    except KeyError:
        return None
