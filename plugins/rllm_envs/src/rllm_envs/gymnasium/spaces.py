"""Turn observations into text, and text into actions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

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
