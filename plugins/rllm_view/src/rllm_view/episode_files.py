"""Show files of episodes as runs: a temporary directory gets a record of each file's episodes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from rllm_core.data.record import Outcome
from rllm_core.data.types import Step
from rllm_record.interchange.drafts import AFTER
from rllm_record.interchange.formats import format_of, stream_file
from rllm_record.run_files import METRICS
from rllm_record.steps import RecordedEpisode, RecordedOutcome, StepFiles

RULE = "not trained here"
"""Rule of the outcome of every trajectory."""
NO_RESPONSE = "no response"
"""Finish reason of a turn that has only messages."""


@contextmanager
def as_runs(paths: Sequence[Path]) -> Iterator[tuple[Path, ...]]:
    """Yield `paths`, with a run directory instead of each file of episodes.

    Raises:
        FormatError: no format recognizes a file, or it cannot be read.
    """
    with TemporaryDirectory(prefix="rllm-view-") as directory:
        yield tuple(
            _write_run(Path(directory, str(number), path.name), path) if _is_file(path) else path
            for number, path in enumerate(paths)
        )


def _is_file(path: Path) -> bool:
    return not path.is_dir() or format_of(path) is not None


def _write_run(run: Path, path: Path) -> Path:
    by_step: dict[int, list[RecordedEpisode]] = defaultdict(list)
    for each in stream_file(path):
        _add_last_messages(each)
        by_step[each.step].append(each)
    files = StepFiles(run / "record")
    lines = []
    for step, episodes in sorted(by_step.items()):
        files.write(step, episodes, _outcomes(step, episodes), "tokens")
        lines.append(json.dumps({"step": step, "train/weight_version": step + 1, **_metrics(episodes)}))
    run.mkdir(parents=True, exist_ok=True)
    (run / METRICS).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return run


def _add_last_messages(episode: RecordedEpisode) -> None:
    """Add a turn without a response for messages after the last model call, because turns contain the messages."""
    for each in episode.trajectories:
        if messages := each.trajectory.info.get(AFTER):
            each.trajectory.steps.append(Step(messages=messages, info={"finish_reason": NO_RESPONSE}))


def _outcomes(step: int, episodes: Sequence[RecordedEpisode]) -> list[RecordedOutcome]:
    """Return an outcome for each trajectory. Trajectories of a task with the same name are a group."""
    groups: dict[str, list[str]] = defaultdict(list)
    for episode in episodes:
        for each in episode.trajectories:
            groups[_group(episode, each.trajectory.name)].append(each.uid)
    return [
        RecordedOutcome(
            outcome=Outcome(
                step=step,
                trajectory=each.uid,
                outcome="dropped",
                rule=RULE,
                numbers={},
                group=_group(episode, each.trajectory.name),
                peers=tuple(uid for uid in groups[_group(episode, each.trajectory.name)] if uid != each.uid),
            ),
            rollout_step=step,
            batch=episode.batch,
            episode=episode.uid,
            name=each.trajectory.name,
        )
        for episode in episodes
        for each in episode.trajectories
    ]


def _group(episode: RecordedEpisode, name: str) -> str:
    return f"{episode.episode.task_id}:{name}"


def _metrics(episodes: Sequence[RecordedEpisode]) -> Mapping[str, float]:
    rewards: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        for each in episode.trajectories:
            if each.reward_given is not None and isfinite(each.reward_given):
                rewards[each.trajectory.name or "all"].append(each.reward_given)
    means = {f"reward/{name}/mean": float(np.mean(values)) for name, values in rewards.items()}
    return means | {"batch/solved": float(np.mean([episode.episode.is_correct for episode in episodes]))}
