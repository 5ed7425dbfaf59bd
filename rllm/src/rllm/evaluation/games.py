"""Print some rollouts of an evaluation turn by turn, for `--show`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from rllm.evaluation.rollouts import FinishedRollout
from rllm_core.data.messages import read_text
from rllm_core.data.types import Episode, Step, Task, Trajectory
from rllm_core.notices import harmless


class Games:
    """The first missing rollouts of each environment, whichever of them end first."""

    def __init__(self, count: int) -> None:
        """`count` is the number of rollouts to print for each environment."""
        self._count = count
        self._games: dict[str, dict[tuple[str, int], Episode | None]] = {}

    def expect(self, name: str, missing: Iterator[tuple[Task, int]]) -> None:
        """Choose among the rollouts that will be run, in their order."""
        self._games[name] = {(task.id, index): None for task, index in islice(missing, self._count)}

    def take(self, name: str, finished: FinishedRollout) -> None:
        """Keep a finished rollout if it was chosen."""
        key = finished.episode.task_id, finished.episode.rollout_idx
        if key in self._games[name]:
            self._games[name][key] = finished.episode

    def lines(self) -> Iterator[str]:
        """Yield the lines of all their messages and responses."""
        for name, games in self._games.items():
            for episode in games.values():
                if episode is not None:
                    yield from _episode(name, episode)


def _episode(name: str, episode: Episode) -> Iterator[str]:
    solved = "solved" if episode.is_correct else "not solved"
    yield f"══ {harmless(f'{name}, task {episode.task_id}, rollout {episode.rollout_idx}')}: {solved} ══"
    for trajectory in episode.trajectories:
        yield from _trajectory(trajectory, episode.trajectories)
    yield harmless(f"ended: {episode.termination_reason.value}")
    if episode.error:
        yield f"error: {harmless(episode.error)}"
    yield ""


def _trajectory(trajectory: Trajectory, all_of_them: Sequence[Trajectory]) -> Iterator[str]:
    role = f"{harmless(trajectory.name)}, " if len(all_of_them) > 1 else ""
    for number, step in enumerate(trajectory.steps):
        yield from _turn(f"{role}turn {number}", step)
    if trajectory.reward is not None:
        yield f"{role}reward: {trajectory.reward:.4g}"


def _turn(heading: str, step: Step) -> Iterator[str]:
    yield f"── {heading}, {len(step.response_ids)} tokens ──"
    for message in step.messages:
        yield harmless(f"{message.get('role', '')}: {read_text(message)}")
    yield f"→ {harmless(step.text)}"
