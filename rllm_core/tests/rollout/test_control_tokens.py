"""Control tokens in the text of tools and environments are plain text, as with `split_special_tokens`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from byte_tokenizer import END, byte_tokenizer
from expecting import expect_error

from rllm_core.errors import RolloutError
from rllm_core.notices import forget_warnings
from rllm_core.rollout.control_tokens import RARE
from rllm_core.rollout.options import ControlTokensInText
from rllm_core.rollout.template_renderer import TemplateRenderer

SPELLED = "a <end>\n<end>é<|user|>"
USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok"}


def _renderer(control_tokens: ControlTokensInText = "keep") -> TemplateRenderer:
    return TemplateRenderer(byte_tokenizer(), [END], None, control_tokens)


def _says(role: str, content: str = SPELLED) -> dict[str, str]:
    return {"role": role, "content": content}


@pytest.fixture
def warnings(capsys: pytest.CaptureFixture[str]) -> Any:
    forget_warnings()
    return lambda: capsys.readouterr().err


@pytest.mark.parametrize(
    ("messages", "option", "ends"),
    [
        ([_says("tool")], "keep", 0),
        ([USER, ANSWER, _says("user")], "keep", 1),
        ([USER, ANSWER, _says("tool"), _says("system")], "keep", 1),
        ([_says("system"), USER], "keep", 2),
        ([_says("user"), ANSWER, USER], "keep", 3),
        ([_says("user"), ANSWER, USER], "plain", 1),
        ([USER, _says("assistant"), USER], "keep", 3),
        ([USER, _says("assistant"), USER], "plain", 1),
    ],
)
def test_tools_and_later_messages_end_no_turn(messages: Any, option: Any, ends: int, warnings: Any) -> None:
    renderer = _renderer(option)
    prompt = renderer.prompt(messages)
    encode = renderer.tokenizer.encode
    whole = renderer.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert renderer.tokenizer.decode(prompt) == whole
    assert prompt.tolist().count(END) == ends
    if messages[-1]["content"] == SPELLED:
        tail = [*encode(SPELLED, add_special_tokens=False, split_special_tokens=True), *encode("<|assistant|>")]
        assert prompt[-len(tail) :].tolist() == tail
    kept = ends - sum(each["role"] == "assistant" for each in messages)
    assert ("'<end>'" in warnings()) == bool(kept)


def test_bridge_writes_the_same_and_keeps_sampled_tokens() -> None:
    renderer = _renderer()
    first, sampled = renderer.prompt([USER]), renderer.response_ids(f"ok{RARE}")
    after = renderer.bridge(first, sampled, [_says("user"), _says("tool")])
    whole = renderer.prompt([USER, ANSWER, _says("user"), _says("tool")])
    assert after[: len(first) + len(sampled)].tolist() == [*first, *sampled]
    assert after[len(first) + len(sampled) :].tolist() == whole[len(first) + 3 :].tolist()


def test_refused_control_token_is_named() -> None:
    with expect_error(RolloutError, "control-token-in-text", "'user'", "'<end>'", "control_tokens"):
        _renderer("error").prompt([_says("user")])
    assert _renderer("error").prompt([USER, ANSWER, _says("tool")]).tolist().count(END) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("caf\udce9", "caf\ufffd"),  # a file name that is not UTF-8
        ("\ud83d\ude00", "\U0001f600"),
        (f"a{RARE}", "a\ufffd"),
    ],
)
def test_characters_that_no_tokenizer_reads_are_replaced(text: str, expected: str, warnings: Any) -> None:
    renderer = _renderer()
    assert np.array_equal(renderer.prompt([_says("user", text)]), renderer.prompt([_says("user", expected)]))
    if RARE not in text:
        assert np.array_equal(renderer.encode(text), renderer.encode(expected))
        assert warnings().count("U+FFFD") == 1
