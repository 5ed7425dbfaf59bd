"""Errors about the returned values of an agent contain its name."""

from __future__ import annotations

import pytest

from rllm_core.algorithms.columns import REWARD_ERROR
from rllm_core.data.types import Episode, Trajectory
from rllm_core.errors import RolloutError
from rllm_gateway.episodes import pay, read_returned


def test_a_reward_of_an_unknown_role_names_the_roles_there_were() -> None:
    episode = Episode(id="t:0", trajectories=[Trajectory("solver", uid="t:0/solver")])
    pay(episode, read_returned({"reward": {"solvr": 1.0}}))
    said = episode.trajectories[0].info[REWARD_ERROR]
    assert "'solvr'" in said
    assert "'solver'" in said


def test_a_role_that_made_no_call_this_time_may_have_a_reward() -> None:
    episode = Episode(id="t:0", trajectories=[Trajectory("solver", uid="t:0/solver")])
    pay(episode, read_returned({"reward": {"solver": 1.0, "judge": 0.5}}))
    assert REWARD_ERROR not in episode.trajectories[0].info


@pytest.mark.parametrize("metrics", [[1, 2], "x", 3])
def test_metrics_without_names_are_refused(metrics: object) -> None:
    with pytest.raises(RolloutError, match="as `metrics`"):
        read_returned({"metrics": metrics})
