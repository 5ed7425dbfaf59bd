"""The account of a trajectory as JSON."""

from __future__ import annotations

from typing import Any

from rllm_view.api.as_json import packed
from rllm_view.reading.account import Account
from rllm_view.reading.columns import Column
from rllm_view.reading.panel import facts_of

SHOWN = (
    "uid", "episode", "name", "step", "round", "task_id", "data_source", "is_correct", "ending", "error", "tries",
    "metrics", "task", "turns", "length", "reward_given", "reward_used",
)  # fmt: skip


def account_json(account: Account) -> dict[str, Any]:
    """Everything that the page of a trajectory shows."""
    attempt = account.attempt
    return {
        "attempt": {name: getattr(attempt, name) for name in SHOWN},
        "decided": account.decided,
        "group": account.group,
        "facts": facts_of(account),
        "columns": [_column(each) for each in account.columns],
        "ids": attempt.ids,
        "texts": account.texts,
        "objective": account.objective,
    }


def _column(column: Column) -> dict[str, Any]:
    return {
        "id": column.id,
        "title": column.title,
        "unit": column.unit,
        "epoch": column.epoch,
        "missing": column.missing,
        "words": column.words,
        "column": packed(column.values),
    }
