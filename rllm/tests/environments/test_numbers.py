"""Reading a number from a model's words."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from rllm.environments.numbers import first_whole_number, whole_number

space = st.text(" \n\t", max_size=3)
around = st.tuples(space, space, st.sampled_from(["", "."]), space)


@given(number=st.integers(0, 999_999_999), around=around)
def test_white_space_and_a_full_stop_are_ignored(number: int, around: tuple[str, str, str, str]) -> None:
    before, between, stop, after = around
    assert whole_number(f"{before}{number}{between}{stop}{after}") == number


@pytest.mark.parametrize(
    ("words", "number"), [("007", 7), ("00", 0), (" 15 . ", 15), ("1" * 9, 111_111_111), ("1" * 10, None)]
)
def test_leading_zeros_do_not_matter(words: str, number: int | None) -> None:
    assert whole_number(words) == number


@pytest.mark.parametrize(
    "words",
    ["", " ", ".", "seven", "-3", "+3", "3.5", "3,000", "1 2", "7!", "7..", "x7", "7x", "guess 7", "1e3", "1_000"],
)
def test_words_that_are_more_or_less_than_a_number_are_none(words: str) -> None:
    assert whole_number(words) is None


@given(st.text(max_size=20) | st.just("9" * 100_000))
def test_any_words_have_a_number_or_none(words: str) -> None:
    for number in (whole_number(words), first_whole_number(words)):
        assert number is None or 0 <= number < 10**9


@pytest.mark.parametrize(
    ("words", "number"),
    [("7", 7), ("answer 2, not 1", 2), ("-3.5", 3), ("x12y", 12), ("007", 7), ("", None), ("none", None), ("²", None)],
)
def test_the_first_digits_among_words_are_a_number(words: str, number: int | None) -> None:
    assert first_whole_number(words) == number
