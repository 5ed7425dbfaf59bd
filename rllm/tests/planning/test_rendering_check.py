"""All rows are checked with the run's renderer before the first step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from expecting import expect_error

from rllm.builtin.preferences.comparison import PreferParams
from rllm.builtin.preferences.objective import PreferenceObjective
from rllm.builtin.supervised.objective import ImitationObjective
from rllm.builtin.tasks.question import QuestionParams, first_prompt
from rllm.planning.rendering_check import check_rendering
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_plugin_kit.small_model import STOP_ID, make_tokenizer

USER, ANSWER = {"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}
THOUGHT = ANSWER | {"reasoning_content": "why"}


def _plan(**values: Any) -> Any:
    workflow = SimpleNamespace(plugin=SimpleNamespace(calls_tools=False))
    unset = dict.fromkeys(("train_dataset", "val_dataset", "rows", "environment"))
    return SimpleNamespace(**{**unset, "workflow": workflow, **values})


SFT = _plan(rows=ImitationObjective(_plan(stages=())))
PREFER = _plan(rows=PreferenceObjective(_plan(stages=[SimpleNamespace(params=PreferParams())])))
QUESTION = SimpleNamespace(params=QuestionParams(), plugin=SimpleNamespace(first_prompt=first_prompt))
TRAIN = _plan(environment=QUESTION)


@pytest.mark.parametrize(
    ("plan", "good", "bad", "key"),
    [
        (SFT, {"messages": [USER, ANSWER]}, {"messages": [USER, THOUGHT]}, "messages[1].reasoning_content"),
        (
            PREFER,
            {"prompt": [USER], "chosen": [ANSWER], "rejected": [USER | ANSWER]},
            {"prompt": [USER], "chosen": [ANSWER], "rejected": [THOUGHT]},
            "reasoning_content",
        ),
        (TRAIN, {"prompt": [USER, ANSWER, USER]}, {"prompt": [USER, THOUGHT, USER]}, "prompt[1].reasoning_content"),
    ],
)
@pytest.mark.parametrize("split", ["train", "val"])
def test_last_row_with_a_hidden_part_is_named(plan: Any, good: Any, bad: Any, key: str, split: str) -> None:
    renderer = TemplateRenderer(make_tokenizer(), [STOP_ID])
    rows = [Task(id=str(number), data=row) for number, row in enumerate([good, good, bad])]
    tasks = {"train": rows[:2], "val": rows[:2], split: rows}
    with expect_error(ConfigError, "bad-row", f"data.{split}_dataset", "'2'", key):
        check_rendering(plan, renderer, tasks["train"], tasks["val"])
