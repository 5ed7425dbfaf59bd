"""`math`: what is equal, and what becomes of comparisons that do not end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from expecting import check_values

from rllm.tasks import math_reward, plugin
from rllm.tasks.reward_options import MathParams
from rllm.tasks.worker_pool import WorkerPool
from rllm_core.contracts.reward import Rollout
from rllm_core.errors import ConfigError, PluginError
from rllm_serving.line_process import DiedError, LineProcess

Make = Callable[..., Any]
MakeRollout = Callable[..., Rollout]
ENDLESS = "The answer is $9^{9^{9^9}}$."


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPool]:
    """Two workers of this test."""
    made = WorkerPool("rllm.tasks.math_worker", 2)
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


def test_an_answer_without_mathematics_is_a_missing_reward(make: Make, rollout: MakeRollout) -> None:
    before = set(threading.enumerate())
    score = make("math")(rollout("4", answer="$$"))
    assert score.value is None
    assert "'$$'" in score.feedback
    assert set(threading.enumerate()) <= before


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
    question = {"said": "4", "answers": ["4"], "seconds": 60}
    assert pool.ask(question)["correct"]
    process = _free(pool)
    os.kill(process.pid, signal.SIGKILL)
    while process.exit_code is None:
        pass
    with pytest.raises(DiedError, match="ended with -9"):
        pool.ask({**question, "said": "5"})
    assert pool.ask(question)["correct"]

    fatal = {"said": ENDLESS, "answers": ["7"], "seconds": 1}
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
    for error, ask in ((PluginError, lambda: make("math")), (ConfigError, lambda: plugin._check_math(MathParams()))):
        with pytest.raises(error, match=r"(?s)math-verify.* pip install 'rllm\[math\]'"):
            ask()
