"""Everything that is checked before a run starts, without starting one."""

from __future__ import annotations

from collections.abc import Sequence

from rllm.cli import Request, plan_for
from rllm.planning import RunPlan, check_to_train
from rllm.training import load_tasks
from rllm_core.data.types import Task


def checked_plan(request: Request) -> tuple[RunPlan, Sequence[Task], Sequence[Task]]:
    """Return the plan of a request, its training tasks and its validation tasks.

    Raises:
        ConfigError: a run of the request would be rejected.
    """
    plan = plan_for(request)
    train_tasks, val_tasks = load_tasks(plan, "train"), load_tasks(plan, "val")
    check_to_train(plan, train_tasks, val_tasks)
    return plan, train_tasks, val_tasks
