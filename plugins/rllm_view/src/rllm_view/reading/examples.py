"""Examples of a run's rewards: the responses at each end, and the responses on which two rewards differ most."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rllm_record.steps.files import step_files
from rllm_record.steps.parquet import read_columns
from rllm_view.reading.texts import MOST_BYTES

EXAMPLES = 10
"""Maximum number of examples in a table."""
LONGEST = 1000
"""Maximum number of characters of a response and of a task."""
_TRAJECTORY = "trajectories.list.element"
_LEAVES = [
    "step",
    "task_id",
    "is_correct",
    "task",
    "metrics",
    *(f"{_TRAJECTORY}.{name}" for name in ("uid", "reward_given", "components", "info", "steps.list.element.text")),
]


@dataclass(frozen=True, kw_only=True)
class Example:
    """A response with its rewards."""

    step: int
    trajectory: str
    """Uid of the first trajectory with this response."""
    rollouts: int
    """Number of rollouts of the task with this response and these rewards."""
    task_id: str | None
    task: str | None
    """Data of the task as JSON. None: not recorded."""
    is_correct: bool | None
    reward: float
    rewards: Mapping[str, float]
    """Each reward without its weight, by name."""
    extracted: str | None
    """The text that the rewards read as the answer. None: not reported, or not recorded."""
    response: str | None
    """The last response. None: not recorded."""

    @property
    def difference(self) -> float:
        """Largest difference of two rewards."""
        return max(self.rewards.values(), default=0.0) - min(self.rewards.values(), default=0.0)


@dataclass(frozen=True, kw_only=True)
class Examples:
    """The examples of some steps. Equal responses to a task are one example."""

    read_steps: int
    """Number of steps that were read, from the latest."""
    rollouts: int
    """Number of trajectories with a reward in these steps."""
    highest: Sequence[Example]
    lowest: Sequence[Example]
    different: Sequence[Example]
    """Examples on which two rewards differ, the largest difference first."""


def find_examples(record: Path, first: int, last: int) -> Examples:
    """Return the examples of the steps from `first` to `last`. Stop after files of `MOST_BYTES`, the latest first.

    Raises:
        RecordError: a file cannot be read.
    """
    files = step_files(record / "episodes")
    found: dict[Any, Example] = {}
    size = steps = 0
    for step in sorted((each for each in files if first <= each <= last), reverse=True):
        if size < MOST_BYTES:
            size, steps = size + files[step].stat().st_size, steps + 1
            for each in _read_examples(files[step]):
                key = each.trajectory if each.response is None else (each.task_id, each.response, each.reward)
                known = found.get(key)
                found[key] = each if known is None else replace(known, rollouts=known.rollouts + 1)
    frequent = sorted(found.values(), key=lambda each: -each.rollouts)
    different = [each for each in frequent if each.difference > 0]
    return Examples(
        read_steps=steps,
        rollouts=sum(each.rollouts for each in frequent),
        highest=sorted(frequent, key=lambda each: -each.reward)[:EXAMPLES],
        lowest=sorted(frequent, key=lambda each: each.reward)[:EXAMPLES],
        different=sorted(different, key=lambda each: -each.difference)[:EXAMPLES],
    )


def _read_examples(file: Path) -> Iterator[Example]:
    for row in read_columns(file, _LEAVES).to_pylist():
        metrics = dict(row["metrics"] or ())
        for trajectory in row["trajectories"]:
            reward = trajectory["reward_given"]
            if reward is not None and math.isfinite(reward):
                turns = trajectory["steps"]
                yield Example(
                    step=row["step"],
                    trajectory=trajectory["uid"],
                    rollouts=1,
                    task_id=row["task_id"],
                    task=row["task"] and row["task"][:LONGEST],
                    is_correct=row["is_correct"],
                    reward=reward,
                    rewards=_rewards_by_name(dict(trajectory["components"] or ()), metrics),
                    extracted=json.loads(trajectory["info"] or "{}").get("extracted"),
                    response=turns[-1]["text"] and turns[-1]["text"][:LONGEST] if turns else None,
                )


def _rewards_by_name(components: Mapping[str, float], metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the rewards of ``rllm.reward``, or the components of the environment's reward."""
    scored = {name: metrics[f"reward.{name}"] for name in components if f"reward.{name}" in metrics}
    whole = {name: value for name, value in scored.items() if name.rpartition(".")[0] not in scored}
    return whole or {name: value for name, value in components.items() if math.isfinite(value)}
