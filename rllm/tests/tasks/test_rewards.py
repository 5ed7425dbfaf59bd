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


def test_exact_may_mind_the_case(make: Make, rollout: MakeRollout) -> None:
    assert make("exact", ignore_case=False)(rollout("paris", answer="Paris")).value == 0.0


@pytest.mark.parametrize(
    ("said", "answer", "value"),
    [
        ("B", "B", 1.0),
        ("A? No: the answer is (b).", "B", 1.0),
        (r"\boxed{C}", "(C)", 1.0),
        ("B) 42", 1, 1.0),
        ("D", "d", 1.0),
        ("B, as it is A's fault", "B", 1.0),
        ("A. Better than B", "A", 0.0),
        ("Bad", "B", 0.0),
        ("", "B", 0.0),
    ],
)
def test_choice(said: str, answer: Any, value: float, make: Make, rollout: MakeRollout) -> None:
    score = make("choice")(rollout(said, answer=answer))
    assert score.value == value


@pytest.mark.parametrize("answer", ["42", 7, "Z"])
def test_choice_says_which_answer_is_no_option(answer: Any, make: Make, rollout: MakeRollout) -> None:
    score = make("choice")(rollout("B", answer=answer))
    assert score.value is None
    check_values(str(score.feedback), repr(answer), "ABCDE")


@pytest.mark.parametrize(
    ("said", "value", "extracted"),
    [("answer: 7; answer: 42", 1.0, "42"), ("answer: 42; answer: 7", 0.0, "7"), ("42", 0.0, None)],
)
def test_regex_compares_the_last_match(
    said: str, value: float, extracted: str | None, make: Make, rollout: MakeRollout
) -> None:
    score = make("regex", pattern=r"answer: (\d+)")(rollout(said, answer=42))
    assert (score.value, score.extracted) == (value, extracted)


@pytest.mark.parametrize(("said", "value"), [("<a>4\n2</a>\n", 1.0), ("so <a>42</a>", 0.0), ("<a>42", 0.0), ("", 0.0)])
def test_format_matches_the_whole_response(said: str, value: float, make: Make, rollout: MakeRollout) -> None:
    score = make("format", pattern="<a>.*</a>")(rollout(said))
    assert (score.value, score.correct) == (value, None)


@pytest.mark.parametrize(("tokens", "value"), [(100, 0.0), (150, -0.5), (50, -0.5), (0, -1.0), (1000, -1.0)])
def test_length_costs_by_the_distance_from_the_target(
    tokens: int, value: float, make: Make, rollout: MakeRollout
) -> None:
    score = make("length", target=100)(rollout("", tokens=tokens))
    assert (score.value, score.correct) == (value, None)
    forgiving = make("length", target=100, shorter_is_fine=True)(rollout("", tokens=tokens))
    assert forgiving.value == (0.0 if tokens < 100 else value)


@pytest.mark.parametrize("name", ["exact", "choice"])
@pytest.mark.parametrize(
    ("data", "values"),
    [
        ({"question": "?"}, ["'answer'", "question"]),
        ({"answer": None}, ["'answer'", "None"]),
        ({"answer": []}, ["'answer'", "[]"]),
        ({"answer": {"value": 4}}, ["'answer'", "{'value': 4}"]),
        ({"answer": float("nan")}, ["'answer'", "nan"]),
    ],
)
def test_without_an_answer_the_reward_is_missing(
    name: str, data: dict[str, Any], values: list[str], make: Make, rollout: MakeRollout
) -> None:
    score = make(name)(rollout("4", **data))
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
def test_a_pattern_that_takes_for_ever_is_killed_and_the_next_response_is_scored(
    name: str, pattern: str, make: Make, rollout: MakeRollout
) -> None:
    reward = make(name, pattern=pattern, deadline=1.0)
    score = reward(rollout("a" * 60, answer="aa"))
    assert score.value is None
    assert "1 s" in score.feedback
    assert reward(rollout("aab", answer="aa")).value == 1.0
