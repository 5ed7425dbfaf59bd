"""A table of a few trajectories of a step, for trackers that display text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from rllm_core.contracts.params import Params
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.messages import read_text
from rllm_core.data.types import Episode, Trajectory


class EpisodeTableParams(Params):
    """Options of trackers that show a table of a few trajectories."""

    episodes: int = Field(4, ge=0)
    """Number of trajectories in a step's table. 0: no table."""
    episodes_every: int = Field(10, ge=1)
    """Number of steps between tables."""


TAG = "episodes"
"""The name of the table."""
COLUMNS = ("rollout", "role", "reward", "solved", "ending", "conversation")
MAX_CHARACTERS = 4000
"""Maximum number of characters of a conversation. The middle of a longer one is cut."""
Row = tuple[str, str, float | None, bool, str, str]
"""A value for each of `COLUMNS`."""


def table_rows(step: TrainStep, params: EpisodeTableParams) -> list[Row]:
    """Return rows for trajectories of a step, in the order of their rewards. Empty if no table is due.

    The rows are evenly spaced in that order. A trajectory without a reward comes first.
    """
    if step.global_step % params.episodes_every:
        return []
    rollouts = [(episode, each) for episode in step.generated for each in episode.trajectories]
    rollouts.sort(key=lambda pair: -math.inf if (reward := _reward(pair[1])) is None else reward)
    spread = np.linspace(0, len(rollouts) - 1, min(params.episodes, len(rollouts)))
    return [_row(*rollouts[place]) for place in spread.round().astype(int).tolist()]


def as_markdown(rows: Sequence[Row]) -> str:
    """Return the table in Markdown, with each value in one line."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _row(episode: Episode, trajectory: Trajectory) -> Row:
    reason = episode.termination_reason.value
    reward, text = _reward(trajectory), _conversation(trajectory)
    return episode.id, trajectory.name, reward, bool(episode.is_correct), reason, text


def _reward(trajectory: Trajectory) -> float | None:
    """Return the reward. None if it is missing, not a number, or not finite."""
    reward: object = trajectory.reward
    return float(reward) if isinstance(reward, int | float) and math.isfinite(reward) else None


def _conversation(trajectory: Trajectory) -> str:
    parts: list[str] = []
    for step in trajectory.steps:
        parts += [f"[{message.get('role', '')}] {read_text(message)}" for message in step.messages]
        parts.append(f"[response] {step.text}")
    text = "\n".join(parts).encode("utf-8", "replace").decode()
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[: MAX_CHARACTERS // 2]}\n…\n{text[-MAX_CHARACTERS // 2 :]}"


def _cell(value: object) -> str:
    """Escape text for a table cell, so that it is displayed unchanged and does not break the table."""
    text = "" if value is None else str(value)
    for character, stands_for in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "&#124;"), ("\n", "<br>")):
        text = text.replace(character, stands_for)
    return text
