"""Rollouts as lines, and back."""

from __future__ import annotations

import datetime

import numpy as np

from rllm.evaluation.rollouts import FinishedRollout
from rllm.evaluation.saved_rollout import rollout_from_line, rollout_to_line, task_digest
from rllm_core.data.types import Episode, Task, Trajectory


def test_rollout_reads_back_from_its_line() -> None:
    task = Task(id="t", data={"answer": "2"})
    episode = Episode(id="t:0", trajectories=[Trajectory("agent", reward=0.5)])
    read = rollout_from_line(rollout_to_line(FinishedRollout(task, episode)))
    assert (read.episode.id, read.episode.trajectories[0].reward, read.task) == ("t:0", 0.5, task_digest(task))


def test_digest_depends_on_all_of_a_task() -> None:
    tasks = [Task(id="a", data={"x": 1}), Task(id="b", data={"x": 1}), Task(id="a", data={"x": 2})]
    tasks += [Task(id="a", data={"x": 1}, data_source="y")]
    assert len({task_digest(task) for task in tasks}) == 4
    assert task_digest(Task(id="a", data={"x": 1, "y": 2})) == task_digest(Task(id="a", data={"y": 2, "x": 1}))


def test_data_that_json_has_no_words_for_has_a_digest() -> None:
    task = Task(id="a", data={"x": np.array([1.5]), "y": datetime.date(2024, 1, 1)})
    assert task_digest(task) == task_digest(Task(id="a", data={"x": [1.5], "y": "2024-01-01"}))
