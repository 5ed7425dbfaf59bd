"""What rewards make of responses, and what becomes of comparisons that do not end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from expecting import check_values
from pydantic import ValidationError

from rllm.builtin.tasks import math_reward, plugin
from rllm.builtin.tasks.worker_pool import WorkerPool
from rllm_core.contracts.reward import RewardPlugin, Rollout
from rllm_core.errors import ConfigError, PluginError
from rllm_serving.line_process import DiedError, LineProcess

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
        ("42", np.float32(42), 1.0),
        ("18.90", Decimal("18.90"), 1.0),
        ("0.00001", 1e-5, 1.0),
        ("Lyon", np.array(["Paris", "Lyon"]), 1.0),
        ("", ".", 0.0),
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
        ("choice", {}, "B", 1.0, 1.0),
        ("choice", {}, "B", "B) A dog", 1.0),
        ("choice", {}, "B", "It is A or B.\n#### b", 1.0),
        ("choice", {}, "B", "The answer is (B).", 1.0),
        ("choice", {}, "B", "**B**", 1.0),
        ("choice", {}, "B, as it is A's fault", "B", 1.0),
        ("choice", {}, "A. Better than B", "A", 1.0),
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
        ("choice", {"answer": "A dog"}, ["'A dog'", "ABCDE"]),
        ("choice", {"answer": "plan B"}, ["'plan B'", "ABCDE"]),
        ("choice", {"answer": True}, ["True", "ABCDE"]),
        ("choice", {"answer": 1.5}, ["1.5", "ABCDE"]),
        ("exact", {"answer": " "}, ["'answer'", "' '"]),
        ("math", {"answer": "$$"}, ["'$$'"]),
        ("math", {"answer": "no number ####"}, ["'no number ####'"]),
    ],
)
def test_bad_answers_have_no_reward(
    name: str, data: Any, values: Any, make: Make, rewards: dict[str, RewardPlugin[Any]], rollout: MakeRollout
) -> None:
    """The run stops before its first step if the reward is missing for every response."""
    score = make(name)(rollout("B", **data))
    assert score.value is None
    check_values(str(score.feedback), *values)
    check = rewards[name].check_task
    assert check is not None
    with pytest.raises(ConfigError) as caught:
        check(rewards[name].params(), data)
    check_values(caught.value.message, *values)


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


ENDLESS = "The answer is $9^{9^{9^9}}$."


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPool]:
    """Two workers of this test."""
    made = WorkerPool("rllm.builtin.tasks.math_worker", 2)
    monkeypatch.setattr(math_reward, "_pool", lambda: made)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("said", "answer", "value"),
    [
        ("The answer is 0.5", r"\frac12", 1.0),
        (r"so \boxed{\frac{1}{2}}", "1/2", 1.0),
        ("$1 + x$", "x+1", 1.0),
        (r"\boxed{\{2, 1\}}", r"\{1,2\}", 1.0),
        ("1234", "1,234", 1.0),
        ("It is 72.", "48 / 2 = 24, and 48 + 24 = 72\n#### 72", 1.0),
        ("It is 24.", "48 / 2 = 24, and 48 + 24 = 72\n#### 72", 0.0),
        ("", "72", 0.0),
        (r"\boxed{", "72", 0.0),
    ],
)
def test_equal_mathematics_is_right(said: str, answer: str, value: float, make: Make, rollout: MakeRollout) -> None:
    assert make("math")(rollout(said, answer=answer)).value == value


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        (r"\$18.90", [r"\boxed{\$18.90}", "It is $18.90", "18.9"], ["18", "90"]),
        (r"$1{,}234", ["1234", "$1,234"], ["234"]),
        ("€5", ["5", "5€"], ["6"]),
        ("5%", [r"\boxed{5\%}", "5%", r"$5\%$", "0.05"], ["50", r"\boxed{0.5}"]),
        ("50 percent", [r"\boxed{50\%}"], ["5"]),
        ("1 000", [r"\boxed{1000}", "1,000"], ["0", "1"]),
        (r"10\,000.5", ["10000.5"], ["10"]),
        ("1.", [r"\boxed{1}"], ["2"]),
        ("-1.5e-3", ["-0.0015", r"\boxed{-1.5\times10^{-3}}"], ["1.5", "-3"]),
        ("3 1/2", [r"\boxed{\frac{7}{2}}", "3.5"], ["2", "1.5"]),
        ("5 dollars", [r"\boxed{5}", "5 dollars"], ["6"]),
        ("100 km/h", ["100"], ["10"]),
        ("90°", [r"\boxed{90^\circ}", "90"], ["9"]),
        ("yes", [], [r"\boxed{no}"]),
    ],
)
def test_right_answers_of_data_sets_are_read(
    answer: str, right: list[str], wrong: list[str], make: Make, rollout: MakeRollout
) -> None:
    reward = make("math")
    right = [rf"\boxed{{{answer}}}", *right]
    found = [reward(rollout(said, answer=answer)).value for said in right + wrong]
    assert found == [1.0] * len(right) + [0.0] * len(wrong)


@pytest.mark.long
def test_comparisons_that_hang_are_killed(pool: WorkerPool, make: Make, rollout: MakeRollout) -> None:
    reward = make("math", deadline=3.0)
    said = [ENDLESS, "7"] * 3
    with ThreadPoolExecutor(len(said)) as threads:
        scores = list(threads.map(lambda words: reward(rollout(words, answer=7)), said))
    assert [score.value for score in scores] == [None, 1.0] * 3
    check_values(str(scores[0].feedback), "'7'", "3 s")


@pytest.mark.long
def test_killed_processes_are_replaced(pool: WorkerPool) -> None:
    question = {"said": ["x"], "answers": ["x"], "seconds": 60}
    assert pool.ask(question)["correct"]
    process = _free(pool)
    os.kill(process.pid, signal.SIGKILL)
    while process.exit_code is None:
        pass
    assert pool.ask(question)["correct"]

    fatal = {"said": ["9^{9^{9^9}}"], "answers": ["7"], "seconds": 1}
    with pytest.raises(DiedError, match=f"ended with -{signal.SIGALRM.value}"):
        pool.ask(fatal)
    pool.start()
    before = _free(pool)
    with pytest.raises(DiedError, match="same question"):
        pool.ask(fatal)
    assert _free(pool) is before
    assert before.exit_code is None
    pool.close()
    assert before.exit_code is not None


def _free(pool: WorkerPool) -> LineProcess:
    """The process that the next question goes to."""
    process = pool._places.get()
    pool._places.put(process)
    assert process is not None
    return process


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    monkeypatch.setattr(plugin, "find_spec", lambda name: None)
    for error, ask in ((PluginError, lambda: make("math")), (ConfigError, lambda: plugin._check_math_verify())):
        with pytest.raises(error, match=r"(?s)math-verify.* pip install 'rllm\[math\]'"):
            ask()
