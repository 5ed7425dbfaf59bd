"""`python`: functions that take all rollouts of a task, with our signature and with TRL's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from expecting import check_values

from rllm.builtin.tasks.plugin import rllm_rewards
from rllm.builtin.tasks.python_reward import PythonParams
from rllm.planning.scoring import Scorer, WeightedReward
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.reward import Rollout, Score
from rllm_core.data.messages import Response

Grouped = Callable[..., list[Score]]
PYTHON = next(record for record in rllm_rewards() if record.name == "python")
SAID = ("a", "aaa", "aa")
CASES = (
    "def score(rollouts):\n    return [len(each.response.content) for each in rollouts]\n",
    "async def score(rollouts):\n    return [{'value': len(each.response.content)} for each in rollouts]\n",
    "def score(completions, **columns):\n    return [len(each) for each in completions]\n",
    "async def score(completions, **columns):\n    return [len(each) for each in completions]\n",
    "def score(completion_ids, **columns):\n    return [len(each) for each in completion_ids]\n",
    # The file does not show what these take.
    "class Size:\n    def __call__(self, completions):\n        return [*map(len, completions)]\nscore = Size()\n",
    "score = lambda rollout: len(rollout.response.content)\n",
    "score = lambda rollouts: [len(each.response.content) for each in rollouts]\n",
)


def rollout(said: str, number: int) -> Rollout:
    data = {"question": "2+2?", "answer": "4", "level": number}
    response = Response(text=said, content=said)
    messages = [{"role": "user", "content": "2+2?"}, response.message]
    ids = tuple(map(ord, said))
    return Rollout(
        data=data, messages=messages, response=response, response_tokens=len(said), response_ids=ids, task_batch=5
    )


@pytest.fixture
def score_group(tmp_path: Path) -> Grouped:
    """The scores of the rollouts of `SAID` by the function `score` of this source."""

    def score(source: str, processes: int = 0, **options: Any) -> list[Score]:
        (tmp_path / "rewards.py").write_text(source)
        params = PythonParams(function=f"{tmp_path}/rewards.py:score", processes=processes, **options)
        choice = PluginChoice(registered=Registered(plugin=PYTHON, distribution="rllm", version="0"), params=params)

        async def run() -> list[Score]:
            scorer = Scorer([WeightedReward(chosen=choice, weight=1.0)])
            return await scorer.score_all([rollout(said, 3) for said in SAID])

        return asyncio.run(run())

    return score


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("source", CASES)
def test_functions_take_all_rollouts_of_a_task(source: str, processes: int, score_group: Grouped) -> None:
    assert [score.value for score in score_group(source, processes)] == [1.0, 3.0, 2.0]


@pytest.mark.parametrize("processes", [0, 2])
def test_trl_functions_get_trls_arguments(processes: int, score_group: Grouped) -> None:
    source = """
def score(prompts, completions, completion_ids, trainer_state, log_extra, log_metric, level, **columns):
    log_extra("length", [len(each) for each in completions])
    log_extra("first", [each[0] for each in completions])
    log_metric("seen", 1.0)
    log_metric("seen", 2.0)
    assert prompts == ["2+2?"] * 3 and level == [3] * 3 and trainer_state.global_step == 5
    assert completion_ids == [[97], [97] * 3, [97] * 2]
    assert columns == {"question": prompts, "answer": ["4"] * 3}
    return [1.0, None, -1]
"""
    scores = score_group(source, processes)
    assert [score.value for score in scores] == [1.0, None, -1.0], scores[0].feedback
    assert [score.extracted for score in scores] == [f"length: {len(said)}; first: a" for said in SAID]
    assert scores[1].metrics == {"reward.python.seen": 1.5, "reward.python.not_applicable": 1.0}
    assert scores[2].metrics == {"reward.python": -1.0, "reward.python.seen": 1.5, "reward.python.not_applicable": 0.0}


@pytest.mark.parametrize(
    ("source", "values"),
    [
        ("def score(completions):\n    return [1.0]\n", ["[1.0] for 3 completions", "rewards.py, line 1"]),
        ("def score(rollouts):\n    return 1.0\n", ["1.0 for 3 rollouts", "rewards.py, line 1"]),
        ("def score(rollouts):\n    return 1 / 0\n", ["rewards.py, line 2", "ZeroDivisionError"]),
        ("def score(completions, log_extra):\n    log_extra('a', [1])\n    return [0] * 3\n", ["1 values of a"]),
        ("def score(completions, gold):\n    return [0] * 3\n", ["takes gold", "answer, level, question"]),
    ],
)
@pytest.mark.parametrize("processes", [0, 1])
def test_failed_call_is_explained(source: str, values: list[str], processes: int, score_group: Grouped) -> None:
    for score in score_group(source, processes):
        assert score.value is None
        check_values(score.feedback, *values)


def test_one_bad_number_is_one_missing_reward(score_group: Grouped) -> None:
    for source in CASES[0], CASES[2]:
        scores = score_group(source.replace("[len", "[float('nan') if 'aaa' in str(each) else len"))
        assert [score.value for score in scores] == [1.0, None, 2.0]
        check_values(scores[1].feedback, "nan", "finite")


def test_deadline_is_for_each_rollout_of_a_call(score_group: Grouped) -> None:
    source = "import time\ndef score(completions):\n    time.sleep(SECONDS)\n    return [0] * 3\n"
    assert [each.value for each in score_group(source.replace("SECONDS", "0.6"), 1, deadline=0.4)] == [0.0] * 3
    for each in score_group(source.replace("SECONDS", "60"), 1, deadline=0.1):
        assert each.value is None
        check_values(each.feedback, "0.1 s", "deadline")
