"""The contract of every environment, and a walk to the goal."""

import pytest

pytest.importorskip("minigrid", reason="minigrid is not installed: pip install minigrid")

import gymnasium
from rllm_plugin_kit import EnvironmentContract

from minigrid_text.environment import ACTIONS, MinigridText
from minigrid_text.options import MinigridTextParams

WALK = ("forward", "forward", "right", "forward", "forward")
"""From the upper left corner of the empty room to the goal in the lower right corner."""


class TestMinigridText(EnvironmentContract):
    name = "minigrid-text/minigrid_text"
    options = ({}, {"max_steps": 3})
    actions = WALK


def test_goal_has_the_reward_of_minigrid() -> None:
    environment = MinigridText(MinigridTextParams())
    assert "get to the green goal square" in environment.reset({"seed": 1})
    outcomes = [environment.step(f"I go {word}.") for word in WALK]
    room = gymnasium.make("MiniGrid-Empty-5x5-v0", max_steps=12)
    room.reset(seed=1)
    rewards = [room.step(ACTIONS.index(word))[1] for word in WALK]

    assert [outcome.reward for outcome in outcomes] == rewards
    assert (outcomes[-1].done, outcomes[-1].correct, outcomes[0].done) == (True, True, False)
