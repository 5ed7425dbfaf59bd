"""The environments `guess`, `sum` and `mixed`, and the workflow `solver_judge`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_core.contracts.workflow import AGENT_KEYS, WorkflowPlugin
from rllm_core.errors import ConfigError
from rllm_core.lazy import call_lazily, load_from
from rllm_core.plugins import hookimpl

requires_api = 1


# Config values that train the model `tiny` from random weights on each environment, found by experiments. The important
# ones: several optimizer steps per batch, an entropy bonus that ends long before the run does, advantages that are
# centered but not divided by the group's standard deviation, and short prompts (a random model cannot read).
_OPTIMIZER: dict[str, Any] = {
    "rllm.algorithm.norm_adv_by_std_in_grpo": False,
    "rllm.algorithm.loss_agg_mode": "seq-mean-token-sum",
    "rllm.algorithm.eps_clip_high": 0.3,
    # One token is the whole answer, so an answer that is cut off there has lost nothing.
    "data.max_response_length": 1,
    "rllm.compact_filtering.mask_max_response_length_exceeded": False,
    "training.learning_rate": 1e-3,
    "training.warmup_steps_ratio": 0.02,
    "training.num_epochs": 2,
    "training.num_minibatches": 4,
}

GUESS_TINY: dict[str, Any] = _OPTIMIZER | {
    "rllm.env.env_args.prompt": "guess",
    "rllm.rollout.n": 16,
    "rllm.trainer.total_epochs": 240,
    "rllm.trainer.test_freq": 60,
    "rllm.algorithm.entropy": {"coeff": 0.04, "final_coeff": 0.0, "decay_steps": 210},
}

SUM_TINY: dict[str, Any] = _OPTIMIZER | {
    "rllm.env.env_args.prompt": "{a}+{b}",
    "rllm.rollout.n": 8,
    "data.train_batch_size": 32,
    "rllm.trainer.total_epochs": 75,
    "rllm.trainer.test_freq": 60,
    "rllm.algorithm.entropy": {"coeff": 0.03, "final_coeff": 0.0, "decay_steps": 200},
}

_ON_VERL = {
    "training.learning_rate": "actor_rollout_ref.actor.optim.lr",
    "training.warmup_steps_ratio": "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio",
    "training.num_epochs": "actor_rollout_ref.actor.ppo_epochs",
}


def on_verl(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe with the key names of the backend `verl`, and with the AdamW options of other backends."""
    named = {_ON_VERL.get(key, key): value for key, value in recipe.items()}
    return named | {
        "actor_rollout_ref.actor.optim.betas": [0.9, 0.95],
        "actor_rollout_ref.actor.optim.weight_decay": 0.0,
    }


def _check_integers(*columns: str) -> Callable[[Any, Mapping[str, Any]], None]:
    """Return a check that a task has integers in these columns, like the environment's own tasks."""

    def check(params: Any, task: Mapping[str, Any]) -> None:
        if not all(isinstance(task.get(column), int) for column in columns):
            raise ConfigError(
                "tasks-not-for-environment",
                f"A task has {', '.join(sorted(task)) or 'no columns'}, and this environment needs an integer in "
                f"{' and '.join(columns)}.",
                "Remove the dataset, because the environment has its own tasks. Or use environment `question`.",
            )

    return check


@hookimpl
def rllm_environments() -> Iterable[EnvironmentPlugin[Any]]:
    yield EnvironmentPlugin(
        name="guess",
        summary="Find a number from 0 to 15 in five guesses (several turns).",
        load_params=load_from("rllm.builtin.environments.number_games", "GuessParams"),
        load=load_from("rllm.builtin.environments.number_games", "Guess"),
        check_task=_check_integers("number"),
        blocking=False,
        defaults={"rllm.workflow.name": "multi_turn_workflow", "rllm.rollout.n_val": 16},
        recipes={"local/tiny": GUESS_TINY, "tinker/tiny": GUESS_TINY, "verl/tiny": on_verl(GUESS_TINY)},
        # Binary search; the averages over all sixteen numbers.
        best_possible={"reward": 0.7625, "guesses": 3.375},
    )
    yield EnvironmentPlugin(
        name="sum",
        summary="Add two small numbers (one turn, exact match).",
        load_params=load_from("rllm.builtin.environments.number_games", "SumParams"),
        load=load_from("rllm.builtin.environments.number_games", "Sum"),
        check_task=_check_integers("a", "b"),
        blocking=False,
        defaults={"rllm.workflow.name": "single_turn_workflow"},
        recipes={"local/tiny": SUM_TINY, "tinker/tiny": SUM_TINY, "verl/tiny": on_verl(SUM_TINY)},
        best_possible={"reward": 1.0},
    )
    yield EnvironmentPlugin(
        name="mixed",
        summary="Several environments in one run, in fixed ratios.",
        load_params=load_from("rllm.builtin.environments.mixed", "MixedEnvironmentParams"),
        load=load_from("rllm.builtin.environments.mixed", "MixedEnvironment"),
        check=call_lazily("rllm.builtin.environments.mixed", "check"),
        sources=call_lazily("rllm.builtin.environments.mixed", "read_sources"),
        check_task=call_lazily("rllm.builtin.environments.mixed", "check_task"),
        defaults={"rllm.workflow.name": "multi_turn_workflow", "rllm.sampler": "mixed"},
    )


@hookimpl
def rllm_workflows() -> Iterable[WorkflowPlugin[Any]]:
    yield WorkflowPlugin(
        name="solver_judge",
        summary="Several answers to one question, and a judge that picks one; roles solver and judge.",
        load_params=load_from("rllm.builtin.environments.solver_judge", "SolverJudgeParams"),
        load=load_from("rllm.builtin.environments.solver_judge", "SolverJudge"),
        config_keys=AGENT_KEYS,
    )
