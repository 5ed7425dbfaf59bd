"""`gymnasium`: one action per turn. Observations become text, and text becomes actions."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces

from rllm_core.contracts.environment import Environment, Outcome, Split
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError, did_you_mean
from rllm_envs.gymnasium.options import GymnasiumParams
from rllm_envs.tasks import make_seed_tasks

LARGEST_OBSERVATION = 1000
"""Numbers in an observation. An image has more, and no text form."""
_FIELD = re.compile(r"\{(observation|picture|reward)\}")


class Gymnasium(Environment):
    """Plays the task ``{seed}`` in the environment of the options. The reward is the sum of the environment's."""

    def __init__(self, params: GymnasiumParams) -> None:
        self._params = params
        self._environment = _make(params)
        self._names = _action_names(params)
        self._request = describe_actions(self._environment.action_space, self._names) or ""
        self._sum = 0.0
        self._turns = self._invalid = 0

    @classmethod
    def tasks(cls, split: Split, params: GymnasiumParams) -> Sequence[Task]:
        """Return the episodes of a split, by seed."""
        return make_seed_tasks(split, params, params.id)

    def reset(self, task: Mapping[str, Any]) -> str:
        observation, _ = self._environment.reset(seed=task["seed"])
        rules = self._params.prompt or f"You act in {self._params.id}. {self._request}"
        return f"{rules}\n{self._write(observation, 0.0)}"

    def step(self, action: str) -> Outcome:
        self._turns += 1
        chosen = read_action(action, self._environment.action_space, self._names)
        if chosen is None:
            self._invalid += 1
            return Outcome(observation=f"That is not an action. {self._request}")
        observation, reward, terminated, truncated, _ = self._environment.step(chosen)
        reward = float(reward)
        self._sum += reward
        cause = "" if math.isfinite(reward) else f"step {self._turns} of {self._params.id!r} has reward {reward}"
        if not (terminated or truncated):
            return Outcome(observation=self._write(observation, reward), reward=reward, reward_error=cause)
        solved_at = self._params.solved_at
        return Outcome(
            reward=reward,
            reward_error=cause,
            done=True,
            correct=None if solved_at is None else self._sum >= solved_at,
            metrics={"turns": float(self._turns), "invalid": float(self._invalid)},
        )

    def close(self) -> None:
        self._environment.close()

    def _write(self, observation: Any, reward: float) -> str:
        has_picture = self._environment.render_mode == "ansi"
        template = self._params.template or ("{picture}" if has_picture else "{observation}")
        fields = {
            "observation": lambda: write_observation(observation),
            "picture": lambda: write_picture(str(self._environment.render())) if has_picture else "",
            "reward": lambda: f"{reward:g}",
        }
        return _FIELD.sub(lambda match: fields[match[1]](), template)


def check_environment(params: GymnasiumParams) -> None:
    """Make the environment once.

    Raises:
        ConfigError: there is no such environment, a package is missing, it rejects its options, or text cannot express
            its observations or actions.
    """
    environment = _make(params)
    try:
        actions, observations = environment.action_space, environment.observation_space
        names = _action_names(params)
        if isinstance(actions, gymnasium.spaces.Discrete) and len(names) not in (0, actions.n):
            raise ConfigError(
                "environment-options-rejected",
                f"rllm.env.env_args.actions has {len(names)} names, and {params.id!r} has {actions.n} actions.",
                "Name every action once, in the order of their numbers.",
            )
        if describe_actions(actions, names) is None:
            raise _not_playable(params, f"its actions are a {type(actions).__name__}, which text cannot express")
        size = math.prod(observations.shape or ())
        if size > LARGEST_OBSERVATION and environment.render_mode != "ansi":
            raise _not_playable(params, f"its observations are {size} numbers, and it has no render mode ansi")
    finally:
        environment.close()


def _make(params: GymnasiumParams) -> gymnasium.Env[Any, Any]:
    """Make the environment, with the render mode ``ansi`` if it has one and the options name no other."""
    try:
        environment = gymnasium.make(params.id, **params.options)
        if "ansi" in environment.metadata.get("render_modes", ()) and "render_mode" not in params.options:
            environment.close()
            environment = gymnasium.make(params.id, render_mode="ansi", **params.options)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(
            "missing-package", f"Environment {params.id!r} needs a package that is not installed.", str(error)
        ) from error
    except ImportError as error:
        raise ConfigError(
            "unknown-choice",
            f"rllm.env.env_args.id: {params.id!r} cannot be imported: {error}.",
            "Install the module, or put its directory on Python's path: PYTHONPATH=. rllm train …",
        ) from error
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        raise ConfigError(
            "unknown-choice",
            f"rllm.env.env_args.id: Gymnasium has no environment {params.id!r}.",
            did_you_mean(params.id, list(gymnasium.registry))
            or f"{error} For your own, call gymnasium.register({params.id.rpartition(':')[2]!r}, CLASS) in its module.",
        ) from error
    except Exception as error:
        raise ConfigError(
            "environment-options-rejected",
            f"Environment {params.id!r} rejects its options {params.options!r}: {type(error).__name__}: {error}.",
            "Change the named option in rllm.env.env_args.options, or remove that key.",
        ) from error
    return environment


def _action_names(params: GymnasiumParams) -> tuple[str, ...]:
    kind = params.id.rpartition(":")[2].rpartition("-v")[0]
    return tuple(params.actions) or NAMES.get(kind, ())


def _not_playable(params: GymnasiumParams, reason: str) -> ConfigError:
    return ConfigError(
        "game-not-playable",
        f"Environment {params.id!r} cannot be played through text: {reason}.",
        "Write an environment that uses it, see docs/how-to/own-environment.md.",
    )


NAMES = {
    "FrozenLake": ("left", "down", "right", "up"),
    "FrozenLake8x8": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "CliffWalkingSlippery": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
    "Blackjack": ("stick", "hit"),
}
"""Names of the actions in Gymnasium's documentation, by the environment's id without its version."""
DIGITS = 4
"""Decimal digits of numbers in an observation."""
_ARRAYS = (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)
_HIGHLIGHTED = re.compile(r"\x1b\[[\d;]+m(.*?)\x1b\[0m", re.DOTALL)


def write_observation(value: Any) -> str:
    """Return an observation as JSON, its numbers rounded to `DIGITS` digits."""
    return json.dumps(_to_json(value), ensure_ascii=False)


def _to_json(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _to_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(each) for each in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def write_picture(rendered: str) -> str:
    """Return the text of render mode ``ansi``. Colored characters, such as the player's place, get brackets."""
    return _HIGHLIGHTED.sub(r"[\1]", rendered).strip("\n")


def describe_actions(space: Space[Any], names: Sequence[str]) -> str | None:
    """Return the sentence that asks for an action of `space`, or None if text cannot express its actions."""
    if isinstance(space, spaces.Discrete):
        if names:
            return f"Reply with one of: {', '.join(names)}."
        return f"Reply with a number from {space.start} to {space.start + space.n - 1}."
    if isinstance(space, _ARRAYS):
        shape = " x ".join(map(str, space.shape))
        return f"Reply with a JSON list of {shape} numbers."
    return "Reply with text." if isinstance(space, spaces.Text) else None


def read_action(text: str, space: Space[Any], names: Sequence[str]) -> Any | None:
    """Return the last action of `space` that `text` contains, or None if it contains none."""
    action: Any = None
    if isinstance(space, spaces.Discrete) and names:
        found = re.findall(rf"\b(?:{'|'.join(map(re.escape, names))})\b", text, re.IGNORECASE)
        lowered = [name.lower() for name in names]
        action = space.start + lowered.index(found[-1].lower()) if found else None
    elif isinstance(space, spaces.Discrete):
        numbers = re.findall(r"-?\d+", text)
        action = int(numbers[-1]) if numbers else None
    elif isinstance(space, _ARRAYS):
        action = _read_array(text, space)
    elif isinstance(space, spaces.Text):
        action = text
    return action if action is not None and space.contains(action) else None


def _read_array(text: str, space: Space[Any]) -> np.ndarray | None:
    lists = re.findall(r"\[[\s\d\[\],.eE+-]*\]", text)
    if not lists:
        return None
    try:
        return np.array(json.loads(lists[-1]), dtype=space.dtype).reshape(space.shape or ())
    except (ValueError, TypeError, OverflowError):
        return None
