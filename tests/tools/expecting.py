"""Tests of errors compare the code and the values. The sentences are compared in docs/reference/errors.md."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from rllm_core.errors import RllmError

ErrorT = TypeVar("ErrorT", bound=RllmError)


@contextmanager
def expect_error(kind: type[ErrorT], code: str, *values: object) -> Iterator[pytest.ExceptionInfo[ErrorT]]:
    """Expect an error with a code, and with each value somewhere in its message, hint or details.

    Args:
        kind: the class of the error, or a base class.
        code: its code.
        values: text, or objects whose `str` is in the text.
    """
    with pytest.raises(kind) as caught:
        yield caught
    check_error(caught.value, code, *values)


def check_error(error: RllmError, code: str, *values: object) -> None:
    """Check the code of an error, and that its text has each value."""
    assert error.code == code, f"{error.code}: {error}"
    check_values(str(error), *values)


def check_printed(text: str, code: str, *values: object) -> None:
    """Check that a command printed an error with a code, and each value with it."""
    label = f"error[{code}]: "
    assert label in text, text
    check_values(text[text.index(label) :], *values)


def check_one_error(text: str) -> None:
    """Check that a command printed an error with its hint, and nothing else such as a traceback."""
    assert text.startswith("error["), text
    assert text.count("\n") == 1 + ("\nhint: " in text), text


def check_values(text: str, *values: object) -> None:
    """Check that a text has each value."""
    missing = [str(value) for value in values if str(value) not in text]
    assert not missing, f"{missing} not in: {text}"
