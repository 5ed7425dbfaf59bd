"""`rllm reward check`: rewards with a known fault are reported with that fault."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rllm.cli.main import main

ROWS = [
    {"question": "What is 6 times 7?", "answer": "42"},
    {"question": "What is the capital of Peru?", "answer": "Lima"},
    {"question": "What is 1 - 8?", "answer": "-7"},
]
FUNCTIONS = """
import itertools, time

def contains(rollout):
    return float(rollout.data["answer"] in rollout.response.text)

def boxed(rollout):
    text = rollout.response.content.strip()
    _, box, rest = text.rpartition("\\\\boxed{")
    if "\\\\boxed{" in text.replace("\\\\boxed{" + rest, "") or not box:
        return 0.0
    return float(rest.partition("}")[0] == rollout.data["answer"])

def constant(rollout):
    return 0.25

def fails(rollout):
    if not rollout.response.content:
        raise ValueError("nothing to read")
    return boxed(rollout)

calls = itertools.count()

def counting(rollout):
    return float(next(calls) % 2)
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    Path("rewards.py").write_text(FUNCTIONS)


def check(*words: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return the JSON of a check."""
    code = main(["reward", "check", *words, "--data", "rows.jsonl", "--json"])
    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    return json.loads(printed.out)


def accepted_exploits(reward: Any) -> set[str]:
    """Return the names of the accepted exploits."""
    return {each["case"] for each in reward["responses"] if each["is_accepted"] and not each["is_right"]}


def test_substring_search_accepts_exploits(capsys) -> None:
    (reward,) = check("rewards.py:contains", capsys=capsys)["rewards"]

    assert reward["false_negatives"]["value"] == 0
    assert {
        "a negation",
        "two answers",
        "only in the reasoning",
        "a corrected answer",
        "a longer number",
    } <= accepted_exploits(reward)
    assert not {"empty", "a wrong answer"} & accepted_exploits(reward)


def test_only_formats_of_the_reward_count(capsys) -> None:
    (reward,) = check("rewards.py:boxed", capsys=capsys)["rewards"]

    assert list(reward["formats"]) == ["boxed"]
    assert reward["false_negatives"]["value"] == reward["false_positives"]["value"] == 0
    assert {each["format"] for each in reward["responses"] if each["is_right"] and each["is_counted"]} == {"boxed"}


def test_required_format_counts_if_it_is_never_accepted(capsys) -> None:
    (reward,) = check("exact", "--format", "<answer>{answer}</answer>", capsys=capsys)["rewards"]

    assert reward["false_negatives"]["value"] == 1


def test_exact_has_no_false_positive(capsys) -> None:
    (reward,) = check("exact", capsys=capsys)["rewards"]

    assert (reward["false_positives"]["value"], set(reward["formats"])) == (0, {"plain", "after reasoning"})


def test_constant_reward_accepts_nothing_and_is_reported(capsys) -> None:
    assert main(["reward", "check", "rewards.py:constant", "--data", "rows.jsonl"]) == 0

    printed = capsys.readouterr().out
    assert "warning: the reward is 0.25 for every response" in printed
    assert "rejected right answers: 100.0%" in printed


def test_missing_rewards_are_reported_with_their_reason(capsys) -> None:
    main(["reward", "check", "rewards.py:fails", "--data", "rows.jsonl"])

    printed = capsys.readouterr().out
    assert re.search(r"warning: \d+ of \d+ responses have no reward", printed)
    assert "ValueError: nothing to read" in printed


def test_value_that_depends_on_order_is_found(capsys) -> None:
    (reward,) = check("rewards.py:counting", capsys=capsys)["rewards"]
    (once,) = check("rewards.py:counting", "--once", capsys=capsys)["rewards"]

    assert False in {each["is_equal_at_once"] for each in reward["responses"]}
    assert {each["is_equal_at_once"] for each in once["responses"]} == {None}


def test_two_rewards_are_compared(capsys) -> None:
    (pair,) = check("rewards.py:contains", "rewards.py:boxed", capsys=capsys)["disagreements"]

    assert pair["rewards"] == ["rewards.py:contains", "rewards.py:boxed"]
    assert 0 < pair["different"] < pair["responses"]


@pytest.mark.parametrize(
    ("reward", "bound", "code"),
    [
        ("rewards.py:boxed", "--max-false-positives", 0),
        ("rewards.py:contains", "--max-false-positives", 1),
        ("rewards.py:boxed", "--max-false-negatives", 0),
        ("rewards.py:constant", "--max-false-negatives", 1),
        ("rewards.py:fails", "--max-false-positives", 1),
    ],
)
def test_exit_code_is_1_above_a_bound(reward: str, bound: str, code: int) -> None:
    assert main(["reward", "check", reward, "--data", "rows.jsonl", bound, "0"]) == code


@pytest.mark.parametrize(("answer", "words"), [("6 * 7 is 42.\n#### 42", []), ("It is 42!", ["--answer", "is (.+)!"])])
def test_answer_is_part_of_its_column(answer: str, words: list[str], capsys) -> None:
    Path("rows.jsonl").write_text(json.dumps({"question": "6 * 7?", "answer": answer}) + "\n")

    (reward,) = check("rewards.py:contains", *words, capsys=capsys)["rewards"]

    assert {each["answer"] for each in reward["responses"]} == {"42"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["exat"], "unknown-plugin"),
        (["exact", "--answer", "#### (.+)"], "missing-column"),
        (["{name: exact, column: solution}"], "missing-column"),
        (["exact", "--format", "answer"], "usage-error"),
        (["exact", "--answer", "(("], "usage-error"),
        (["exact", "--answer", "42"], "usage-error"),
        (["choice"], "unreadable-answer"),
    ],
)
def test_mistakes_have_codes(words: list[str], code: str, capsys) -> None:
    assert main(["reward", "check", *words, "--data", "rows.jsonl"]) == 2
    assert f"error[{code}]" in capsys.readouterr().err


def test_reward_without_any_value_fails() -> None:
    Path("rewards.py").write_text("def score(rollout):\n    raise ValueError\n")

    assert main(["reward", "check", "rewards.py:score", "--data", "rows.jsonl"]) == 1


def test_column_is_an_option_of_the_reward(capsys) -> None:
    Path("rows.jsonl").write_text(json.dumps({"question": "6 * 7?", "solution": "42"}) + "\n")

    (reward,) = check("exact", "--column", "solution", capsys=capsys)["rewards"]

    assert reward["false_negatives"]["value"] == 0
