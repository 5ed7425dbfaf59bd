"""Load a reward by its name, and read rows of the data with their right answers as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rllm.builtin.reward_lab.cases import Row
from rllm.builtin.tasks.answers import NoAnswerError, answers_in, as_text, value_at
from rllm.cli import plan_for, read_request
from rllm.planning import RunPlan
from rllm.planning.preflight import check_plugins
from rllm.training import load_tasks
from rllm_core.data.messages import Message
from rllm_core.errors import ConfigError

COLUMNS = ("answer", "ground_truth", "reward_model.ground_truth", "solution", "label")
"""Columns that are tried for the answer, in this order."""


def load_reward(reward: str, data: str, column: str | None) -> RunPlan:
    """Return the plan of a run with one reward and these validation tasks.

    Args:
        reward: a name, ``FILE.py:FUNCTION``, or a mapping with options as in a configuration.
        data: a file, or a dataset by name.
        column: value for the reward's option `column`, if it has one. None: the option's own value.

    Raises:
        ConfigError: the reward or the data cannot be used.
    """
    flags: dict[str, Any] = {"val_data": data}
    is_mapping = reward.lstrip().startswith("{")
    words = ["question", f"rllm.reward=[{reward}]"] if is_mapping else ["question"]
    plan = plan_for(read_request(words, None, (), flags if is_mapping else {**flags, "reward": (reward,)}))
    check_plugins(plan)
    (chosen,) = plan.rewards
    if column is None or "column" not in type(chosen.chosen.params).model_fields:
        return plan
    params = chosen.chosen.params.model_copy(update={"column": column})
    return replace(plan, rewards=(replace(chosen, chosen=replace(chosen.chosen, params=params)),))


def read_rows(plan: RunPlan, column: str | None, pattern: str | None, count: int) -> list[Row]:
    """Return the first rows of the plan's validation tasks.

    Args:
        plan: the result of `load_reward`.
        column: column with the right answer, for rewards without an option `column`. None: the first of `COLUMNS`.
        pattern: regular expression whose first group is the answer. None: the text after ``####``, or the whole column.
        count: maximum number of rows.

    Raises:
        ConfigError: there are no rows, a row has no prompt or no right answer, or the reward cannot score it.
    """
    chosen = plan.rewards[0].chosen
    column = getattr(chosen.params, "column", None) or column
    tasks = load_tasks(plan, "val")[:count]
    if not tasks:
        raise ConfigError("no-validation-tasks", "The data has no rows.", "Give a file with rows: --data FILE.")
    rows = []
    for number, task in enumerate(tasks, 1):
        try:
            found = answers_in(task.data, column or _first_column(task.data))
            answers = [_match(as_text(each), pattern) for each in found]
        except NoAnswerError as error:
            raise ConfigError(
                "missing-column",
                f"Row {number} has no right answer: {error}.",
                "Set --column NAME, or --answer REGEX with a group.",
            ) from error
        if chosen.plugin.check_task is not None:
            chosen.plugin.check_task(chosen.params, task.data)
        rows.append(
            Row(
                number=number,
                data=task.data,
                prompt=_prompt(plan, task.data),
                answer=answers[0],
                right=frozenset(each.strip().lower() for each in answers),
            )
        )
    return rows


def _prompt(plan: RunPlan, data: Mapping[str, Any]) -> list[Message]:
    assert plan.environment is not None
    assert plan.environment.plugin.first_prompt is not None
    prompt = plan.environment.plugin.first_prompt(plan.environment.params, data)
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def _first_column(data: Mapping[str, Any]) -> str:
    for name in COLUMNS:
        try:
            value_at(data, name)
        except NoAnswerError:
            continue
        return name
    raise NoAnswerError(f"none of {', '.join(COLUMNS)} is a column. It has {', '.join(sorted(data))}")


def _match(text: str, pattern: str | None) -> str:
    if pattern is None:
        return text.rpartition("####")[2].strip()
    found = re.search(pattern, text)
    if found is None or not found.re.groups:
        raise NoAnswerError(f"{pattern!r} finds no group in {text!r:.80}")
    return found[1].strip()
