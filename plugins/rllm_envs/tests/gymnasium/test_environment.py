"""Real environments of Gymnasium, played through text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from expecting import expect_error

from rllm_core.contracts.environment import Outcome
from rllm_core.errors import ConfigError
from rllm_envs.gymnasium.environment import Gymnasium, check_environment
from rllm_envs.gymnasium.options import GymnasiumParams
from rllm_envs.seeds import SEEDS

SAFE_PATH = ("down", "down", "right", "right", "down", "right")
"""From the start of FrozenLake's 4 x 4 map to the goal, past its holes."""


class Picture(gymnasium.Env[np.ndarray, int]):
    """Observes an image, and fails in its first step, or returns a reward."""

    def __init__(
        self, side: int = 64, actions: gymnasium.Space[Any] | None = None, reward: float | None = None
    ) -> None:
        self.reward = reward
        self.observation_space = gymnasium.spaces.Box(0, 1, (side, side))
        self.action_space = actions or gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(self.observation_space.shape or (), np.float32), {}

    def step(self, action: Any) -> Any:
        if self.reward is not None:
            observation, info = self.reset()
            return observation, self.reward, True, False, info
        raise RuntimeError("the simulator stopped")


gymnasium.register("Picture-v0", Picture)
PAIRS = gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2)])


def _play(actions: tuple[str, ...], seed: int = 0, **params: Any) -> tuple[str, list[Outcome]]:
    environment = Gymnasium(GymnasiumParams(**params))
    try:
        first = environment.reset({"seed": seed})
        outcomes: list[Outcome] = []
        for action in actions:
            outcomes.append(environment.step(action))
            if outcomes[-1].done:
                break
        return first, outcomes
    finally:
        environment.close()


def test_safe_path_over_the_lake_gets_the_reward() -> None:
    _, outcomes = _play(SAFE_PATH, id="FrozenLake-v1", options={"is_slippery": False})

    assert [outcome.reward for outcome in outcomes] == [0.0] * 5 + [1.0]
    assert outcomes[-1].done
    assert outcomes[-1].metrics == {"turns": 6.0, "invalid": 0.0}


def test_a_hole_ends_the_episode_without_reward() -> None:
    _, outcomes = _play(("right", "down", "up"), id="FrozenLake-v1", options={"is_slippery": False})

    assert [(outcome.reward, outcome.done) for outcome in outcomes] == [(0.0, False), (0.0, True)]


def test_picture_marks_the_player_and_rules_list_actions() -> None:
    rules, (second,) = _play(("Go right!",), id="FrozenLake-v1", options={"is_slippery": False})

    assert "left, down, right, up" in rules
    assert rules.endswith("[S]FFF\nFHFH\nFFFH\nHFFG")
    assert str(second.observation).endswith("S[F]FF\nFHFH\nFFFH\nHFFG")


def test_numbers_and_rewards_fill_the_template() -> None:
    template = "{observation} after {reward}"
    first, (second,) = _play(("1",), id="CartPole-v1", prompt="Balance.", template=template)

    bare = gymnasium.make("CartPole-v1")
    expected, _ = bare.reset(seed=0)
    after, reward, *_ = bare.step(1)
    assert first == f"Balance.\n{[round(float(x), 4) for x in expected]} after 0"
    assert second.observation == f"{[round(float(x), 4) for x in after]} after {reward:g}"


def test_rewards_and_observations_equal_those_of_the_environment() -> None:
    actions = (0, 3, 3, 1, 4, 2, 5, 0)
    bare = gymnasium.make("Taxi-v4")
    bare.reset(seed=7)
    expected = [float(bare.step(action)[1]) for action in actions]

    names = ("south", "north", "east", "west", "pickup", "dropoff")
    _, outcomes = _play(tuple(names[action] for action in actions), seed=7, id="Taxi-v4")

    assert [outcome.reward for outcome in outcomes] == expected


def test_continuous_actions_are_a_json_list() -> None:
    _, outcomes = _play(("I push with [0.5]", "[9]", "[a]"), id="Pendulum-v1")

    assert outcomes[0].reward < 0
    assert [outcome.reward for outcome in outcomes[1:]] == [0.0, 0.0], "both are no actions"


def test_response_without_an_action_only_costs_a_turn() -> None:
    lake: dict[str, Any] = {"id": "FrozenLake-v1", "options": {"is_slippery": False}}
    _, outcomes = _play(("fly", *SAFE_PATH), **lake)

    assert outcomes[-1].reward == 1.0
    assert outcomes[-1].metrics == {"turns": 7.0, "invalid": 1.0}


@pytest.mark.parametrize(("solved_at", "correct"), [(None, None), (1.0, True), (1.5, False)])
def test_solved_is_the_sum_of_rewards(solved_at: float | None, correct: bool | None) -> None:
    _, outcomes = _play(SAFE_PATH, id="FrozenLake-v1", options={"is_slippery": False}, solved_at=solved_at)

    assert outcomes[-1].correct is correct


def test_episode_follows_from_seed_and_actions() -> None:
    slippery = [_play(("right", "down") * 5, seed=seed, id="FrozenLake-v1") for seed in (3, 4, 3)]

    assert slippery[0] == slippery[2] != slippery[1]


def test_tasks_are_seeds_and_splits_share_none() -> None:
    params = GymnasiumParams(id="Taxi-v4", train_size=2, val_size=1, seed=5)

    assert [task.data["seed"] for task in Gymnasium.tasks("train", params)] == [5, 6]
    assert [task.data["seed"] for task in Gymnasium.tasks("val", params)] == [SEEDS + 5]


def test_a_module_before_the_id_registers_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mazes.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.toy_text import FrozenLakeEnv\n"
        "gymnasium.register('Maze-v0', FrozenLakeEnv, kwargs={'is_slippery': False})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    _, outcomes = _play(("1", "1", "2", "2", "1", "2"), id="mazes:Maze-v0")

    assert outcomes[-1].reward == 1.0


@pytest.mark.filterwarnings("ignore:.*reward is a NaN")
def test_nan_reward_has_a_cause() -> None:
    _, (outcome,) = _play(("1",), id="Picture-v0", options={"side": 2, "reward": float("nan")})
    assert "step 1 of 'Picture-v0'" in outcome.reward_error


def test_environment_failure_is_an_error_without_reward() -> None:
    with pytest.raises(RuntimeError):
        _play(("1",), id="Picture-v0", options={"side": 2})


@pytest.mark.parametrize(
    ("params", "code", "value"),
    [
        ({"id": "FrozenLak-v1"}, "unknown-choice", "FrozenLake-v1"),
        ({"id": "Taxi-v9"}, "unknown-choice", "Taxi-v4"),
        ({"id": "no_such_module:X-v0"}, "unknown-choice", "no_such_module"),
        ({"id": "FrozenLake-v1", "options": {"map": 3}}, "environment-options-rejected", "map"),
        ({"id": "FrozenLake-v1", "actions": ["left"]}, "environment-options-rejected", "actions"),
        ({"id": "Picture-v0"}, "game-not-playable", "4096"),
        ({"id": "Picture-v0", "options": {"side": 2, "actions": PAIRS}}, "game-not-playable", "Tuple"),
    ],
)
def test_unplayable_environment_is_rejected_before_a_run(params: dict[str, Any], code: str, value: str) -> None:
    with expect_error(ConfigError, code, value):
        check_environment(GymnasiumParams(**params))
