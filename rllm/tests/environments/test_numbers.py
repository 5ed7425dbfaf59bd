"""Reading a number from a model's words."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from rllm.environments.numbers import first_whole_number, whole_number

space = st.text(" \n\t", max_size=3)


@given(number=st.integers(0, 999_999_999), before=space, between=space, stop=st.sampled_from(["", "."]), after=space)
def test_a_number_is_read_with_white_space_and_a_full_stop_around_it(
    number: int, before: str, between: str, stop: str, after: str
) -> None:
    assert whole_number(f"{before}{number}{between}{stop}{after}") == number


@pytest.mark.parametrize(("words", "number"), [("007", 7), ("0", 0), ("00", 0), (" 15 . ", 15)])
def test_leading_zeros_do_not_matter(words: str, number: int) -> None:
    assert whole_number(words) == number


@pytest.mark.parametrize(
    "words",
    ["", " ", ".", "seven", "-3", "+3", "3.5", "3,000", "1 2", "7!", "7..", "x7", "7x", "guess 7", "1e3", "1_000"],
)
def test_words_that_are_more_or_less_than_a_number_are_none(words: str) -> None:
    assert whole_number(words) is None


def test_numbers_too_long_to_be_meant_are_none() -> None:
    assert whole_number("1" * 9) == 111_111_111
    assert whole_number("1" * 10) is None
    assert whole_number("9" * 100_000) is None


@given(st.text(max_size=20))
def test_any_words_are_answered(words: str) -> None:
    number = whole_number(words)
    assert number is None or 0 <= number < 10**9


@pytest.mark.parametrize(
    ("words", "number"),
    [("7", 7), ("answer 2, not 1", 2), ("-3.5", 3), ("x12y", 12), ("007", 7), ("", None), ("none", None), ("²", None)],
)
def test_the_first_digits_among_words_are_a_number(words: str, number: int | None) -> None:
    assert first_whole_number(words) == number


@given(st.text(max_size=20))
def test_any_words_have_a_first_number_or_none(words: str) -> None:
    number = first_whole_number(words)
    assert number is None or 0 <= number < 10**9
    assert first_whole_number("9" * 100_000) is None
