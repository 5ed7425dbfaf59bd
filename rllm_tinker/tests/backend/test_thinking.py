"""`rllm.disable_thinking` reaches the chat template."""

from __future__ import annotations

from pathlib import Path

import pytest

from rllm_core.errors import ConfigError
from rllm_local.tiny import build_tokenizer
from rllm_tinker.engine import renderer_setup
from rllm_tinker.settings import ModelSection, RolloutEngineSection, TinkerConfig

SWITCH = "{% if enable_thinking is defined and not enable_thinking %}brief {% endif %}{{ messages[0].content }}"


def _config(tokenizer: str) -> TinkerConfig:
    return TinkerConfig(
        model=ModelSection(tokenizer=tokenizer), rollout_engine=RolloutEngineSection(disable_thinking=True)
    )


def test_thinking_is_switched_off_in_the_template(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = SWITCH
    tokenizer.save_pretrained(tmp_path)
    setup = renderer_setup(_config(str(tmp_path)), "base")
    asked = [{"role": "user", "content": "1"}]
    prompt = setup.tokenizer.apply_chat_template(asked, tokenize=False, **setup.template_options)
    assert prompt == "brief 1"


def test_a_template_without_the_switch_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no switch `enable_thinking`"):
        renderer_setup(_config("tiny"), "base")
