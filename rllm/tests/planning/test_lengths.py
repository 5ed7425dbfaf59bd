"""Lengths of rows and prompts are measured on a sample, with the rows that a limit cuts or drops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error
from letters import Letters

from rllm.builtin.preferences.command import read_prefer_request
from rllm.builtin.supervised.command import read_sft_request
from rllm.cli.configuring import plan_for, read_request
from rllm.planning import lengths
from rllm.planning.lengths import Lengths, Model, measure_lengths
from rllm.training.setup import load_tasks
from rllm_core.errors import ConfigError

MODEL = Model(Letters(), max_context=30)  # type: ignore[arg-type]
ROW_TOKENS = len("Uab|A" + "$")


def chat(length: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "x" * length}]}


def pair(length: int) -> dict[str, Any]:
    user, assistant = chat(length)["messages"]
    return {"prompt": [user], "chosen": [assistant], "rejected": [{"role": "assistant", "content": "y"}]}


@pytest.fixture
def measured(tmp_path: Path) -> Any:
    """The lengths of rows in a file, for a command and its flags."""
    file = tmp_path / "rows.jsonl"

    def measure(command: str, rows: list[Any], flags: dict[str, Any], model: Model | None = MODEL) -> list[Lengths]:
        file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        flags = {"data": str(file), **flags}
        if command == "prefer":
            plan = plan_for(read_prefer_request((), None, (), flags))
        elif command == "sft":
            plan = plan_for(read_sft_request((), None, (), flags))
        else:
            words = ("question", "data.max_prompt_length=9")
            plan = plan_for(read_request(words, None, (), {"reward": ("exact",), **flags}))
        return measure_lengths(plan, load_tasks(plan, "train"), None, model)

    return measure


CUT, DROPPED = "are longer and cut off", "are longer and dropped"
QUESTIONS = [{"question": "q" * length, "answer": "1"} for length in (3, 6, 7)]


@pytest.mark.parametrize(
    ("command", "rows", "flags", "sizes", "effects"),
    [
        ("sft", [chat(1), chat(24), chat(25)], {}, [ROW_TOKENS + 1, 30, 31], {CUT: 1}),
        ("sft", [chat(1), chat(24)], {"max_length": 12, "long_rows": "drop"}, [7, 30], {DROPPED: 1}),
        ("prefer", [pair(1), pair(25)], {}, [7, 31], {CUT: 1}),
        ("train", QUESTIONS, {}, [6, 9, 10], {"are too long to get a response": 1}),
    ],
)
def test_tokens_and_effects_of_the_limit(
    command: str, rows: list[Any], flags: dict[str, Any], sizes: list[int], effects: dict[str, int], measured: Any
) -> None:
    (found,) = measured(command, rows, flags)
    assert (found.unit, [*found.measured.values()], found.effects) == ("tokens", sizes, effects)


def test_run_without_fitting_row_does_not_start(measured: Any) -> None:
    with expect_error(ConfigError, "row-too-long", "2 rows of", "--max-length 5"):
        measured("sft", [chat(1), chat(24)], {"max_length": 5})


def test_row_that_stops_run_is_named_first(measured: Any) -> None:
    with expect_error(ConfigError, "row-too-long", "'2'", "30 tokens", "--max-length 9"):
        measured("sft", [chat(1), chat(24)], {"max_length": 9, "long_rows": "error"})


@pytest.mark.parametrize(
    ("command", "rows", "sizes"),
    [("sft", [chat(4)], [6]), ("prefer", [pair(4)], [2 + 4 + 2 + 1]), ("train", QUESTIONS, [3, 6, 7])],
)
def test_characters_are_counted_without_a_tokenizer(
    command: str, rows: list[Any], sizes: list[int], measured: Any
) -> None:
    (found,) = measured(command, rows, {}, None)
    assert (found.unit, [*found.measured.values()], found.limit) == ("characters", sizes, "")


def test_sample_is_spaced_and_smaller_for_long_rows(measured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "SAMPLE", 4)
    rows = [chat(length) for length in range(1, 13)]
    (found,) = measured("sft", rows, {})
    assert [*found.measured] == ["1", "4", "7", "10"]
    first, limit = found.lines()
    assert "4 evenly spaced rows" in first
    assert "longest 16 ('10')" in first
    assert "30 tokens" in limit
    assert "None is longer" in limit
    monkeypatch.setattr(lengths, "CHARACTERS", 50)
    (found,) = measured("sft", rows, {})
    assert [*found.measured] == ["1", "7"]
