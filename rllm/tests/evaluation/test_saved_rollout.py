"""Attempts as lines, and back."""

from __future__ import annotations

import datetime

import numpy as np

from rllm.evaluation.saved_rollout import SavedRollout, SavedScore, rollout_from_line, rollout_to_line, task_digest
from rllm_core.contracts.reward import Rollout
from rllm_core.data.messages import MalformedToolCall, Response, ToolCall
from rllm_core.data.types import Episode, Task, Trajectory

RESPONSE = Response(
    text="<a>",
    content="a",
    reasoning="hm",
    tool_calls=(ToolCall(name="f", arguments={"x": 1}),),
    malformed_calls=(MalformedToolCall(text="f(", problem="cut off"),),
)


def test_what_rewards_saw_reads_back() -> None:
    said = [{"role": "user", "content": "1+1"}]
    rollout = Rollout(data={"answer": "2"}, messages=said, response=RESPONSE, response_tokens=1)
    episode = Episode(id="t:0", trajectories=[Trajectory("agent", reward=0.5)])
    read = rollout_from_line(rollout_to_line(SavedRollout(episode, "d", (SavedScore(rollout, 0.5, True),))))
    assert read.scores == (SavedScore(rollout, 0.5, True),)
    assert (read.episode.id, read.episode.trajectories[0].reward, read.task) == ("t:0", 0.5, "d")


def test_a_digest_tells_tasks_apart_by_all_they_hold() -> None:
    tasks = [Task(id="a", data={"x": 1}), Task(id="b", data={"x": 1}), Task(id="a", data={"x": 2})]
    tasks += [Task(id="a", data={"x": 1}, data_source="y")]
    assert len({task_digest(task) for task in tasks}) == 4
    assert task_digest(Task(id="a", data={"x": 1, "y": 2})) == task_digest(Task(id="a", data={"y": 2, "x": 1}))


def test_data_that_json_has_no_words_for_has_a_digest() -> None:
    task = Task(id="a", data={"x": np.array([1.5]), "y": datetime.date(2024, 1, 1)})
    assert task_digest(task) == task_digest(Task(id="a", data={"x": [1.5], "y": "2024-01-01"}))
