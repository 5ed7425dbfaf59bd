"""The summary of a data source counts what a run uses, and what it does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rllm.builtin.preferences.comparison import PreferParams
from rllm.builtin.preferences.objective import PreferenceObjective
from rllm.builtin.supervised.objective import ImitationObjective
from rllm.planning.preflight import check_rows
from rllm_core.data.types import Task

ASK, ANSWER = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}
NOTHING = {"role": "assistant", "content": None}


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        (
            [
                {"id": "a", "messages": [ANSWER, ASK, ANSWER | {"weight": 0}, ASK, NOTHING, ASK], "level": 3},
                {"id": "b", "messages": [{"role": "developer", "content": "Add."}, ASK, ANSWER], "text": "2+2=4"},
            ],
            [
                "Data rows.jsonl: 2 rows",
                "  messages: 4 assistant, 3 user, 1 system",
                "  not trained: 2 assistant messages with a weight of 0, or without a prompt",
                "  empty: 1 trained message without text, reasoning and tool calls",
                "  not used: 1 message after the last assistant message of a row",
                "  columns used: messages",
                "  columns ignored: level (1 row), text (1 row)",
            ],
        ),
        (
            [{"prompt": "2+2=", "completion": "4", "text": "2+2=4"}, {"text": "1"}],
            ["Data rows.jsonl: 2 rows", "  columns used: prompt (1 row), completion (1 row), text"],
        ),
    ],
)
def test_summary_counts_messages_and_columns(rows: list[dict[str, Any]], lines: list[str]) -> None:
    tasks = [Task(id=str(number), data=row) for number, row in enumerate(rows)]
    plan: Any = SimpleNamespace(stages=())
    assert [*check_rows(ImitationObjective(plan), tasks, "rows.jsonl").lines()] == lines


def test_summary_of_preferences_lists_the_compared_columns() -> None:
    row = {"prompt": [ASK], "chosen": [ANSWER], "rejected": [NOTHING], "messages": [ASK, ANSWER]}
    plan: Any = SimpleNamespace(stages=[SimpleNamespace(params=PreferParams())])
    *_, used, ignored = check_rows(PreferenceObjective(plan), [Task(id="0", data=row)], "rows.jsonl").lines()
    assert (used, ignored) == ("  columns used: prompt, chosen, rejected", "  columns ignored: messages")
