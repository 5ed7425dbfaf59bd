"""Answers without a thinking part (`rllm.disable_thinking`)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rllm_backend_kit.renderers import options_without_thinking
from rllm_core.errors import ConfigError

SWITCH = "{% if enable_thinking is false %}<think></think>{% endif %}"


@pytest.mark.parametrize("template", [SWITCH, {"default": SWITCH, "tool_use": ""}])
def test_thinking_is_switched_off_through_the_template(template: Any) -> None:
    tokenizer = SimpleNamespace(chat_template=template)
    assert options_without_thinking(tokenizer) == {"enable_thinking": False}


@pytest.mark.parametrize("template", [None, "{{ messages }}", {"default": "", "tool_use": SWITCH}, {}])
def test_a_template_without_the_switch_cannot_switch_thinking_off(template: Any) -> None:
    tokenizer = SimpleNamespace(chat_template=template)
    with pytest.raises(ConfigError) as caught:
        options_without_thinking(tokenizer)
    assert caught.value.message == (
        "rllm.disable_thinking is true, but the chat template of this model has no switch `enable_thinking`."
    )
    assert caught.value.hint == "Remove rllm.disable_thinking, or choose a model that has the switch."
