"""Answers without a thinking part (`rllm.disable_thinking`)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from expecting import expect_error

from rllm_backend_kit.renderers import options_without_thinking
from rllm_core.errors import ConfigError

SWITCH = "{% if enable_thinking is false %}<think></think>{% endif %}"


@pytest.mark.parametrize("template", [SWITCH, {"default": SWITCH, "tool_use": ""}])
def test_thinking_is_switched_off_through_the_template(template: Any) -> None:
    tokenizer = SimpleNamespace(chat_template=template)
    assert options_without_thinking(tokenizer) == {"enable_thinking": False}


@pytest.mark.parametrize("template", [None, "{{ messages }}", {"default": "", "tool_use": SWITCH}, {}])
def test_template_without_switch_cannot_disable_thinking(template: Any) -> None:
    tokenizer = SimpleNamespace(chat_template=template)
    with expect_error(ConfigError, "no-thinking-switch", "rllm.disable_thinking", "`enable_thinking`"):
        options_without_thinking(tokenizer)
