"""Rows with control tokens of the model in their text are counted before the run, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from byte_tokenizer import END, byte_tokenizer
from expecting import expect_error

from rllm.planning.rendering_check import ControlTokenRows
from rllm_core.errors import ConfigError
from rllm_core.notices import forget_warnings
from rllm_core.rollout.template_renderer import TemplateRenderer

ANSWER = {"role": "assistant", "content": "ok"}


def _count(option: Any) -> None:
    counted = ControlTokenRows("a.jsonl", TemplateRenderer(byte_tokenizer(), [END], None, option))
    for row, contents in {"1": ("hi", "<end>"), "2": ("a <end>", "b"), "3": ("<end>", "b")}.items():
        for _ in range(2):  # a row of preferences has two conversations
            first, later = ({"role": "user", "content": content} for content in contents)
            counted.add(row, [first, ANSWER, later])
    counted.add("4", [{"role": "user", "content": "hi"}, {**ANSWER, "reasoning_content": "<end>"}])
    counted.report()


@pytest.mark.parametrize(("option", "outcome"), [("keep", "keep their meaning"), ("plain", "are plain text")])
def test_rows_with_control_tokens_are_counted(option: str, outcome: str, capsys: pytest.CaptureFixture[str]) -> None:
    forget_warnings()
    _count(option)
    said = capsys.readouterr().err
    assert all(each in said for each in ("a.jsonl: 3 rows", "'<end>'", "row '2'", outcome))


def test_refused_control_token_names_the_row() -> None:
    with expect_error(ConfigError, "bad-row", "a.jsonl", "row '2'", "rllm.renderer.control_tokens"):
        _count("error")
