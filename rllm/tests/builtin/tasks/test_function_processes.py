"""Functions of users that hang, die or misbehave in their processes: one rollout has no reward, the others continue."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error

from rllm.builtin.tasks.python_reward import PythonParams, python_reward
from rllm.builtin.tasks.worker_pool import WorkerPool
from rllm_core.contracts.reward import Rollout, Score
from rllm_core.data.messages import MalformedToolCall, Response, ToolCall
from rllm_core.errors import ConfigError
from rllm_core.rollout.calls import call
from rllm_serving.line_process import DiedError

MakeRollout = Callable[..., Rollout]
Scored = Callable[..., list[Any]]


@pytest.fixture
def scored(tmp_path: Path, rollout: MakeRollout) -> Scored:
    """What the function `score` of this source says of these responses, all at once."""

    def score(source: str, *responses: str, **options: Any) -> list[Any]:
        file = tmp_path / "rewards.py"
        file.write_text(source)
        reward = python_reward(PythonParams(function=f"{file}:score", **options))

        async def at_once() -> list[Any]:
            return await asyncio.gather(
                *(call(reward, rollout(each, answer="4"), blocking=False) for each in responses)
            )

        return asyncio.run(at_once())

    return score


def values(scores: list[Any]) -> list[Any]:
    plain = [score["value"] if isinstance(score, dict) else score for score in scores]
    return [score.value if isinstance(score, Score) else score for score in plain]


HOLDS_THE_LOCK = "import re; re.fullmatch('(a+)+b', 'a' * 60)"
WAITS = "import time; time.sleep(600)"
AWAITS = "import asyncio; await asyncio.sleep(600)"


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("function", "hanging", "processes"),
    [("def", HOLDS_THE_LOCK, 2), ("def", WAITS, 2), ("async def", AWAITS, 2), ("def", WAITS.replace("600", "2"), 0)],
    ids=["holds_the_lock", "waits", "coroutine", "threads"],
)
def test_a_call_that_hangs_is_stopped(function: str, hanging: str, processes: int, scored: Scored) -> None:
    source = f"import os\n{function} score(rollout):\n    if rollout.response.content == 'hang':\n        {hanging}\n"
    scores = scored(source + "    return float(os.getpid())\n", "4", "hang", "5", deadline=1.0, processes=processes)
    assert "within 1 s" in scores[1].feedback
    in_this_process = processes == 0 or function == "async def"
    assert [pid == os.getpid() for pid in values([scores[0], scores[2]])] == [in_this_process] * 2


DYING = """
import os

def score(rollout):
    said = rollout.response.content
    if said == "die":
        os._exit(3)
    if said == "exit":
        exit(3)
    return 1 / (said != "fail")
"""


def test_a_process_that_dies_is_replaced(scored: Scored) -> None:
    scores = scored(DYING, "die", "4", "exit", "fail", "die", "5", processes=1)
    assert values(scores) == [None, 1.0, None, None, None, 1.0]
    assert scores[0].feedback.endswith(" 3")
    assert "rewards.py, line 9) raised SystemExit: 3" in scores[2]["feedback"]
    assert "rewards.py, line 10) raised ZeroDivisionError" in scores[3]["feedback"]


NOISY = """
import signal, sys
import numpy as np

def score(rollout):
    print("a line that is no answer")
    assert sys.stdin.read() == ""
    with_alarm = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.alarm(0)
    return {"value": np.float32(0.5), "correct": np.bool_(False), "metrics": {"n": np.int64(3)}}
"""


def test_function_may_print_read_and_set_alarms(scored: Scored) -> None:
    assert [Score(**score) for score in scored(NOISY, "4")] == [Score(value=0.5, correct=False, metrics={"n": 3.0})]


def test_the_whole_rollout_arrives(tmp_path: Path) -> None:
    calls = (ToolCall(name="f", arguments={"x": [1]}, id="1"),)
    malformed = (MalformedToolCall(text="{", problem="cut off"),)
    texts = {"text": "t", "content": "c", "reasoning": "r", "finish_reason": "length"}
    response = Response(tool_calls=calls, malformed_calls=malformed, **texts)
    counted = {"response_tokens": 7, "state": [1]}
    whole = Rollout(data={"a": {"b": None}}, messages=[response.message], response=response, **counted)
    (tmp_path / "rewards.py").write_text("def score(rollout):\n    return {'value': 0, 'feedback': repr(rollout)}\n")
    reward = python_reward(PythonParams(function=f"{tmp_path}/rewards.py:score"))
    assert asyncio.run(reward(whole))["feedback"] == repr(whole)


def test_data_without_json_need_no_processes(tmp_path: Path, rollout: MakeRollout) -> None:
    (tmp_path / "rewards.py").write_text("def score(rollout):\n    return float(rollout.data['answer'].imag)\n")

    def scored(**options: Any) -> Any:
        reward = python_reward(PythonParams(function=f"{tmp_path}/rewards.py:score", **options))
        return asyncio.run(reward(rollout("4", answer=4j)))

    assert "set its option `processes` to 0" in scored().feedback
    assert scored(processes=0).value == 4.0


def test_later_process_does_not_call_changed_function(tmp_path: Path, rollout: MakeRollout) -> None:
    file = tmp_path / "rewards.py"
    file.write_text("def score(rollout):\n    import os; os._exit(3)\n")
    reward = python_reward(PythonParams(function=f"{file}:score", processes=1))
    asyncio.run(reward(rollout("4")))
    file.write_text("def score(rollout):\n    return 1.0\n")
    assert asyncio.run(reward(rollout("4"))).feedback.startswith(f"{file}:score changed")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_module\ndef score(rollout):\n    pass\n", ("module-not-found", "'no_such_module'")),
        ("import os\nos._exit(3)\ndef score(rollout):\n    pass\n", ("process-died", "function_worker")),
        ("score = 3\n", ("unknown-function", "'score'")),
    ],
)
def test_unusable_files_are_refused_at_start(source: str, said: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(source)
    with expect_error(ConfigError, *said):
        python_reward(PythonParams(function=f"{tmp_path}/rewards.py:score"))


def test_closed_pool_ends_its_processes() -> None:
    pool = WorkerPool("rllm.builtin.tasks.regex_worker", 2)
    taken = pool._places.get()
    pool.start()
    pool._places.put(taken)
    pool.start()
    processes = [each for each in pool._places.queue if each is not None]
    pool.close()
    assert len(processes) == 2
    assert all(each.exit_code is not None for each in processes)
    assert pool.ask({"pattern": "(a)", "text": "a", "whole": False, "seconds": 60}) == "a"
    pool.close()


def test_a_process_that_hangs_before_it_is_ready_is_killed() -> None:
    pool = WorkerPool("timeit", 1, ("--setup", "while True: pass"), seconds_to_start=0.5)
    with pytest.raises(DiedError, match=r"0\.5 s"):
        pool.start()
