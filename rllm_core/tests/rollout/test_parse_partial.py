"""The text of a response that no later token changes, while the rest is sampled."""

from __future__ import annotations

from typing import Any

import pytest
from text_tokenizers import END_THINK, THINK, cleaned, fallback, lossy, renderer_of_bytes

from rllm_core.rollout.template_renderer import before_any

TOOLS = [{"type": "function", "function": {"name": "look_up"}}]


def parse_partial_content(said: bytes, *, tools: bool = False, decoding: object = lossy) -> str:
    return renderer_of_bytes(decoding).parse_partial([1], list(said), TOOLS if tools else ()).content  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "content"),
    [(b"so", "so"), ("so é".encode(), "so é"), ("so é".encode()[:-1], "so "), ("😀".encode()[:3], ""), (b"$", "")],
)
def test_a_character_waits_for_its_last_byte(said: bytes, content: str) -> None:
    assert parse_partial_content(said) == content


def test_bytes_wait_for_bytes_that_complete_them() -> None:
    assert parse_partial_content("a é".encode(), decoding=fallback) == "a "
    assert parse_partial_content("a é.".encode(), decoding=fallback) == "a é."


def test_end_waits_if_tokenizer_cleans_up_spaces() -> None:
    assert (
        parse_partial_content(b"it is so ' and it has been so for a long time", decoding=cleaned)
        == "it is so'and it has"
    )


@pytest.mark.parametrize(
    ("said", "content"),
    [
        (b"wait", "wait"),
        (b"wait ", "wait"),
        (b"wait <", "wait"),
        (b"wait <b", "wait <b"),
        (b"wait <call>{}</call> and", "wait"),
        (b" wait", ""),
    ],
)
def test_possible_begin_of_a_call_waits(said: bytes, content: str) -> None:
    assert parse_partial_content(said, tools=True) == content
    assert parse_partial_content(said) == said.decode()


@pytest.mark.parametrize(
    ("prompt", "response", "reasoning", "content"),
    [
        ([1], [*b"so"], None, ""),
        ([1], [THINK, *b" so "], "so", ""),
        ([THINK], [*b"so"], "so", ""),
        ([THINK], [*b"so", END_THINK, *b"7"], "so", ""),
    ],
    ids=str,
)
def test_reasoning_is_final_before_content(prompt: Any, response: list[int], reasoning: str, content: str) -> None:
    found = renderer_of_bytes(thinks=True).parse_partial(prompt, response)
    assert (found.reasoning, found.content) == (reasoning, content)


@pytest.mark.parametrize(
    ("text", "marks", "before"),
    [
        ("ab", [], "ab"),
        ("abST", ["STOP"], "ab"),
        ("abSTOP c", ["STOP"], "ab"),
        ("abSTx", ["STOP"], "abSTx"),
        ("abc", ["abcd", "c"], ""),
        ("SSTO", ["STOP"], "S"),
    ],
)
def test_text_ends_where_a_mark_may_begin(text: str, marks: list[str], before: str) -> None:
    assert before_any(text, marks) == before
