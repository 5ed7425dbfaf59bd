"""The format `eval`: directories of ``rllm eval --save``. This format is only read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rllm.evaluation.metadata import FILE_NAME
from rllm.evaluation.saving import read_rollouts, require_evaluation
from rllm_record.interchange.formats import EpisodeFormat
from rllm_record.steps import RecordedEpisode, RecordedTrajectory


def is_evaluation(path: Path) -> bool:
    """Return True if this is a directory of `--save`."""
    return (path / FILE_NAME).is_file()


def read(path: Path) -> Iterator[RecordedEpisode]:
    """Yield the rollouts of each environment, in the order in which they ended. Each environment has its own batch."""
    for batch, environment in enumerate(require_evaluation(path).environments.values()):
        for saved in read_rollouts(path, environment):
            episode = saved.episode
            trajectories = [
                RecordedTrajectory(uid=each.uid, trajectory=each, reward_given=each.reward, reward_used=each.reward)
                for each in episode.trajectories
            ]
            yield RecordedEpisode(
                uid=f"0.{batch}:{episode.id}", step=0, batch=batch, episode=episode, trajectories=tuple(trajectories)
            )


FORMAT = EpisodeFormat(name="eval", title="rollouts of rllm eval --save", recognizes=is_evaluation, read=read)
