"""What the rewards that need no process and no file make of responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from expecting import check_values
from pydantic import ValidationError

from rllm_core.contracts.reward import Rollout

Make = Callable[..., Any]
MakeRollout = Callable[..., Rollout]


@pytest.mark.parametrize(
    ("said", "answer", "value"),
    [
        ("Paris", "paris", 1.0),
        (" New\n York. ", "New York", 1.0),
        ("\uff14\uff12", "42", 1.0),
        ("42", 42, 1.0),
        ("42", 42.0, 1.0),
        ("Lyon", ["Paris", "Lyon"], 1.0),
        ("It is Paris", "Paris", 0.0),
        ("", "Paris", 0.0),
    ],
)
def test_exact(said: str, answer: Any, value: float, make: Make, rollout: MakeRollout) -> None:
    score = make("exact")(rollout(said, answer=answer))
    assert (score.value, score.correct) == (value, value == 1.0)


@pytest.mark.parametrize(
    ("name", "options", "said", "answer", "value"),
    [
        ("exact", {"ignore_case": False}, "paris", "Paris", 0.0),
        ("choice", {}, "B", "B", 1.0),
        ("choice", {}, "A? No: the answer is (b).", "B", 1.0),
        ("choice", {}, r"\boxed{C}", "(C)", 1.0),
        ("choice", {}, "B) 42", 1, 1.0),
        ("choice", {}, "D", "d", 1.0),
        ("choice", {}, "B, as it is A's fault", "B", 1.0),
        ("choice", {}, "A. Better than B", "A", 0.0),
        ("choice", {}, "Bad", "B", 0.0),
        ("choice", {}, "", "B", 0.0),
        ("format", {"pattern": "<a>.*</a>"}, "<a>4\n2</a>\n", None, 1.0),
        ("format", {"pattern": "<a>.*</a>"}, "so <a>42</a>", None, 0.0),
        ("format", {"pattern": "<a>.*</a>"}, "<a>42", None, 0.0),
        ("format", {"pattern": "<a>.*</a>"}, "", None, 0.0),
    ],
)
def test_choice_format(
    name: str, options: Any, said: str, answer: Any, value: Any, make: Make, rollout: MakeRollout
) -> None:
    score = make(name, **options)(rollout(said, answer=answer))
    assert (score.value, score.correct) == (value, None if name == "format" else value == 1.0)


@pytest.mark.parametrize(
    ("said", "value", "extracted"),
    [("answer: 7; answer: 42", 1.0, "42"), ("answer: 42; answer: 7", 0.0, "7"), ("42", 0.0, None)],
)
def test_regex_compares_last_match(said: str, value: float, extracted: Any, make: Make, rollout: MakeRollout) -> None:
    score = make("regex", pattern=r"answer: (\d+)")(rollout(said, answer=42))
    assert (score.value, score.extracted) == (value, extracted)


@pytest.mark.parametrize(("tokens", "value"), [(100, 0.0), (150, -0.5), (50, -0.5), (0, -1.0), (1000, -1.0)])
def test_length_costs_by_distance(tokens: int, value: float, make: Make, rollout: MakeRollout) -> None:
    score = make("length", target=100)(rollout("", tokens=tokens))
    assert (score.value, score.correct) == (value, None)
    forgiving = make("length", target=100, shorter_is_fine=True)(rollout("", tokens=tokens))
    assert forgiving.value == (0.0 if tokens < 100 else value)


@pytest.mark.parametrize(
    ("name", "data", "values"),
    [
        ("exact", {"question": "?"}, ["'answer'", "question"]),
        ("exact", {"answer": None}, ["'answer'", "None"]),
        ("choice", {"answer": []}, ["'answer'", "[]"]),
        ("exact", {"answer": {"value": 4}}, ["'answer'", "{'value': 4}"]),
        ("choice", {"answer": float("nan")}, ["'answer'", "nan"]),
        ("choice", {"answer": "42"}, ["'42'", "ABCDE"]),
        ("choice", {"answer": 7}, ["7", "ABCDE"]),
        ("choice", {"answer": "Z"}, ["'Z'", "ABCDE"]),
    ],
)
def test_bad_answers_have_no_reward(name: str, data: Any, values: Any, make: Make, rollout: MakeRollout) -> None:
    score = make(name)(rollout("B", **data))
    assert score.value is None
    check_values(str(score.feedback), *values)


@pytest.mark.parametrize("data", [{"reward_model.truth": "4"}, {"reward_model": {"truth": "4"}}])
def test_the_answer_may_lie_deeper(data: dict[str, Any], make: Make, rollout: MakeRollout) -> None:
    assert make("exact", column="reward_model.truth")(rollout("4", **data)).value == 1.0


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("regex", {"pattern": "("}, "regular expression"),
        ("regex", {"pattern": "answer"}, "group"),
        ("format", {"pattern": "["}, "regular expression"),
        ("length", {"target": 0}, "greater than 0"),
        ("choice", {"letters": "A"}, "pattern"),
        ("python", {"function": "rewards"}, "write FILE.py:FUNCTION"),
    ],
)
def test_options_that_make_no_sense_are_refused(name: str, options: dict[str, Any], said: str, make: Make) -> None:
    with pytest.raises(ValidationError, match=said):
        make(name, **options)


@pytest.mark.long
@pytest.mark.parametrize(("name", "pattern"), [("regex", "((a+)+)b"), ("format", "(a+)+b")])
def test_a_pattern_that_hangs_is_killed(name: str, pattern: str, make: Make, rollout: MakeRollout) -> None:
    reward = make(name, pattern=pattern, deadline=0.5)
    score = reward(rollout("a" * 60, answer="aa"))
    assert score.value is None
    assert "0.5 s" in score.feedback
    assert reward(rollout("aab", answer="aa")).value == 1.0
