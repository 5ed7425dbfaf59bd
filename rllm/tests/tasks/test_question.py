"""What `question` asks, and what of a task it cannot ask."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import expect_error
from pydantic import ValidationError

from rllm.tasks.options import QuestionParams, check_question
from rllm.tasks.question import Question
from rllm_core.contracts.environment import Outcome
from rllm_core.errors import ConfigError

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]


def build_prompt(task: dict[str, Any], **options: Any) -> Any:
    return Question(QuestionParams(**options)).reset(task)


@pytest.mark.parametrize(
    ("task", "options", "prompt"),
    [
        ({"question": "2+2?", "answer": "4"}, {}, "2+2?"),
        ({"question": "no", "prompt": "2+2?", "problem": "no"}, {}, "2+2?"),
        ({"prompt": None, "problem": "2+2?"}, {}, "2+2?"),
        ({"messages": MESSAGES}, {}, MESSAGES),
        ({"prompt": MESSAGES}, {}, MESSAGES),
        ({"question": "no", "task": "2+2?"}, {"prompt": "task"}, "2+2?"),
    ],
)
def test_it_asks_the_first_of_the_usual_columns(task: dict[str, Any], options: dict[str, Any], prompt: Any) -> None:
    assert build_prompt(task, **options) == prompt
    assert Question(QuestionParams()).step("4") == Outcome(done=True)


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("{question}\nBe brief.", "2+2?\nBe brief."),
        (r"{question} Write \boxed{} or \boxed{answer}.", r"2+2? Write \boxed{} or \boxed{answer}."),
        ("{question} {{answer}} {hint}", "2+2? {answer} 3"),
    ],
)
def test_a_template_is_filled_with_columns_and_leaves_other_braces(template: str, prompt: str) -> None:
    assert build_prompt({"question": "2+2?", "answer": "4", "hint": 3}, template=template) == prompt


def test_system_prompt_replaces_the_first_one() -> None:
    system = {"role": "system", "content": "Think."}
    assert build_prompt({"question": "2+2?"}, system_prompt="Think.") == [system, {"role": "user", "content": "2+2?"}]
    assert build_prompt({"messages": MESSAGES}, system_prompt="Think.") == [system, MESSAGES[1]]


@pytest.mark.parametrize(
    ("task", "options", "said"),
    [
        ({"text": "2+2?", "answer": "4"}, {}, ("missing-column",)),
        ({"question": "2+2?"}, {"prompt": "task"}, ("missing-column", "'task'")),
        ({"question": 4}, {}, ("bad-prompt", "4")),
        ({"question": " \n"}, {}, ("bad-prompt", "empty prompt")),
        ({"messages": []}, {}, ("bad-prompt",)),
        ({"messages": [{"role": "nobody", "content": "2+2?"}]}, {}, ("bad-prompt", "'nobody'")),
        ({"messages": [{"role": ["user"], "content": "2+2?"}]}, {}, ("bad-prompt", "'user'")),
        ({"messages": [{"role": "user", "content": 3}]}, {}, ("bad-prompt", "3")),
        ({"messages": ["hello"]}, {}, ("bad-prompt",)),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": "4"}]}, {}, ("bad-prompt",)),
        ({"question": "2+2?"}, {"template": "{qestion}"}, ("bad-prompt", "'qestion'")),
        ({"messages": MESSAGES}, {"template": "{messages}!"}, ("bad-prompt",)),
    ],
)
def test_bad_prompts_are_errors(task: dict[str, Any], options: dict[str, Any], said: tuple[str, ...]) -> None:
    with expect_error(ConfigError, *said) as caught:
        build_prompt(task, **options)
    assert caught.value.hint


def test_it_has_no_own_tasks() -> None:
    assert Question.tasks("val", QuestionParams()) == []
    with expect_error(ConfigError, "no-dataset", "`data.train_dataset`", "--data FILE"):
        Question.tasks("train", QuestionParams())


def test_a_prompt_and_a_template_exclude_each_other() -> None:
    with pytest.raises(ValidationError):
        QuestionParams(template="What is the answer?")
    check_question(QuestionParams(template="{problem}!"))
    with expect_error(ConfigError, "conflicting-keys", "'question'"):
        check_question(QuestionParams(prompt="problem", template="{problem}!"))
