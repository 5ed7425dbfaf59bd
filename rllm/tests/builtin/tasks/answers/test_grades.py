"""Grades of `judge`, from a table that was made by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rllm.builtin.tasks.judge_scores import JudgeParams, UnreadableError, read_score


def _rows() -> Iterator[tuple[str, str, str]]:
    for line in Path(__file__).with_name("grades.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("# "):
            read, said, value = (each.strip() for each in line.split("¦"))
            yield read, said.replace(r"\n", "\n"), value


@pytest.mark.parametrize(("read", "said", "value"), list(_rows()))
def test_grades_are_read_or_missing(read: str, said: str, value: str) -> None:
    best = 10.0 if read == "number" else 1.0
    params = JudgeParams.model_validate({"url": "http://judge/v1", "model": "m", "read": read, "best": best})
    if value == "missing":
        with pytest.raises(UnreadableError):
            read_score(said, params)
    else:
        assert read_score(said, params)[0] == pytest.approx(float(value))
