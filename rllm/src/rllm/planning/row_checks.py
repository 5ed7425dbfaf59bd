"""Check of all rows of data that replace rollouts, and their summary."""

from __future__ import annotations

from collections.abc import Iterable

from rllm.planning.row_objective import RowObjective
from rllm.rows.example import Conversation, is_empty_response
from rllm.rows.problem import naming
from rllm.rows.summary import RowSummary
from rllm_core.data.types import Task


def check_rows(rows: RowObjective, tasks: Iterable[Task], source: str) -> RowSummary:
    """Check all rows, and return their summary. Stored rollouts are checked when they are read.

    Args:
        rows: reads the rows.
        tasks: the rows.
        source: the file or the dataset, for errors.

    Raises:
        ConfigError: a part of a row cannot be used.
    """
    summary = RowSummary(source)
    for task in tasks:
        if type(task) is not Task:
            summary.rows += 1
            continue
        summary.add(task.data)
        with naming(f"{source}, row {task.id!r}"):
            examples = rows.read(task.data)
        summary.used.update(rows.used_columns(task.data))
        for example in examples:
            if isinstance(example, Conversation):
                summary.add_messages(example.messages)
                summary.untrained += len(example.untrained)
                summary.after_last += example.unused
                summary.empty += sum(map(is_empty_response, example.trained))
    summary.keep_columns(tasks)
    return summary
