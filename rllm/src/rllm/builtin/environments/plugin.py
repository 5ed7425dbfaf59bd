"""The environments `guess`, `sum` and `mixed`, and the workflow `solver_judge`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rllm.builtin.environments.options import GuessParams, MixedParams, SolverJudgeParams, SumParams
from rllm.builtin.environments.recipes import GUESS_TINY, SUM_TINY, on_verl
from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_core.contracts.workflow import WorkflowPlugin
from rllm_core.errors import ConfigError
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1


def _of_numbers(*columns: str) -> Callable[[Any, Mapping[str, Any]], None]:
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


def _check_mixed(params: MixedParams) -> None:
    from rllm.builtin.environments.mixed import check

    check(params)


def _check_task_of_mixed(params: MixedParams, task: Mapping[str, Any]) -> None:
    from rllm.builtin.environments.mixed import check_task

    check_task(params, task)


def _sources_of_mixed(params: MixedParams) -> dict[str, str]:
    from rllm.builtin.environments.mixed import read_sources

    return read_sources(params)


@hookimpl
def rllm_environments() -> Iterable[EnvironmentPlugin[Any]]:
    yield EnvironmentPlugin(
        name="guess",
        summary="Find a number from 0 to 15 in five guesses (several turns).",
        params=GuessParams,
        load=load_from("rllm.builtin.environments.guess", "Guess"),
        check_task=_of_numbers("number"),
        blocking=False,
        defaults={"rllm.workflow.name": "multi_turn_workflow", "rllm.rollout.n_val": 16},
        recipes={"local/tiny": GUESS_TINY, "tinker/tiny": GUESS_TINY, "verl/tiny": on_verl(GUESS_TINY)},
        # Binary search; the averages over all sixteen numbers.
        best_possible={"reward": 0.7625, "guesses": 3.375},
    )
    yield EnvironmentPlugin(
        name="sum",
        summary="Add two small numbers (one turn, exact match).",
        params=SumParams,
        load=load_from("rllm.builtin.environments.sum", "Sum"),
        check_task=_of_numbers("a", "b"),
        blocking=False,
        defaults={"rllm.workflow.name": "single_turn_workflow"},
        recipes={"local/tiny": SUM_TINY, "tinker/tiny": SUM_TINY, "verl/tiny": on_verl(SUM_TINY)},
        best_possible={"reward": 1.0},
    )
    yield EnvironmentPlugin(
        name="mixed",
        summary="Several environments in one run, in fixed ratios.",
        params=MixedParams,
        load=load_from("rllm.builtin.environments.mixed", "Mixed"),
        check=_check_mixed,
        sources=_sources_of_mixed,
        check_task=_check_task_of_mixed,
        defaults={"rllm.workflow.name": "multi_turn_workflow", "rllm.sampler": "mixed"},
    )


@hookimpl
def rllm_workflows() -> Iterable[WorkflowPlugin[Any]]:
    yield WorkflowPlugin(
        name="solver_judge",
        summary="Several answers to one question, and a judge that picks one; roles solver and judge.",
        params=SolverJudgeParams,
        load=load_from("rllm.builtin.environments.solver_judge", "SolverJudge"),
        config_keys=frozenset({"rllm.agent.name", "rllm.agent.agent_args", "rllm.reward"}),
    )
