"""Rows of NeMo-Gym as chat messages and tools."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError
from rllm_envs.nemo_gym.environment import NemoGym, check_row, read_messages, read_tools
from rllm_envs.nemo_gym.options import NemoGymParams


def _row(**create: Any) -> dict[str, Any]:
    return {"responses_create_params": create, "expected": 3}


def test_text_input_is_a_user_message_after_instructions() -> None:
    row = _row(input="2+1?", instructions="Be brief.")

    assert read_messages(row) == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+1?"}]
    assert read_tools(row) == []


def test_parts_of_text_are_joined() -> None:
    row = _row(
        input=[{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}]
    )

    assert read_messages(row) == [{"role": "user", "content": "ab"}]


def test_function_becomes_a_chat_tool() -> None:
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}}
    tool = {"type": "function", "name": "add", "description": "Adds.", "parameters": parameters, "strict": True}

    assert read_tools(_row(input="?", tools=[tool])) == [
        {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": parameters}}
    ]


@pytest.mark.parametrize(
    "row",
    [
        {"question": "2+1?"},
        _row(input=[]),
        _row(input=[{"type": "function_call_output", "call_id": "1", "output": "3"}]),
        _row(input=[{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]),
        _row(input="?", tools=[{"type": "web_search"}]),
    ],
)
def test_other_rows_are_rejected(row: dict[str, Any]) -> None:
    with expect_error(ConfigError, "tasks-not-for-environment"):
        check_row(row)


def test_run_without_a_dataset_is_rejected() -> None:
    with expect_error(ConfigError, "no-dataset"):
        NemoGym.tasks("train", NemoGymParams(url="http://127.0.0.1:9"))
