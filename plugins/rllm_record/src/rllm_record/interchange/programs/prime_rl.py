"""Rollouts of prime-rl: ``rollouts/step_N/train/all/traces.jsonl`` in its ``output_dir``. This format is only read.

A line is an episode of verifiers. It is in ``all`` of the step in which it ended. If a batch contains it, it is also
in ``effective`` of the step of this batch, with its advantages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rllm_record.interchange.drafts import EpisodeDraft, make_episodes
from rllm_record.interchange.formats import EpisodeFormat
from rllm_record.interchange.json_files import read_objects
from rllm_record.interchange.programs.verifiers_traces import TRACES, draft_of_line
from rllm_record.steps.rows import RecordedEpisode

PLACES = ("rollouts/step_*/train", "step_*/train", "train", ".")
"""Directories below the path that contain the directories `SUBSETS`."""
SUBSETS = ("effective", "all")


def is_prime_rl(path: Path) -> bool:
    """True if this is the output directory of a run of prime-rl, or a part of its rollouts."""
    return path.is_dir() and bool(_directories(path))


def read(path: Path) -> Iterator[RecordedEpisode]:
    """Yield each rollout for training once, at the step of its batch, or at the step in which it ended.

    Rollouts for evaluation are read if the path is their directory, such as ``rollouts/step_0/eval``.
    """
    return make_episodes(_drafts(_directories(path)))


def _directories(path: Path) -> list[Path]:
    for place in PLACES:
        found = {each.parents[1] for subset in SUBSETS for each in path.glob(f"{place}/{subset}/{TRACES}")}
        if found:
            return sorted(found, key=_step)
    return []


def _step(directory: Path) -> int:
    name = directory.absolute().parent.name.removeprefix("step_")
    return int(name) if name.isdecimal() else 0


def _drafts(directories: list[Path]) -> Iterator[EpisodeDraft]:
    files = {subset: [each / subset / TRACES for each in directories] for subset in SUBSETS}
    trained = {line["id"] for file in files["effective"] if file.is_file() for line in read_objects(file)}
    for directory, *both in zip(directories, *files.values(), strict=True):
        for file in filter(Path.is_file, both):
            for line in read_objects(file):
                if file.parent.name == "effective" or line["id"] not in trained:
                    draft = draft_of_line(line)
                    yield EpisodeDraft(draft.name, draft.fields | {"step": _step(directory)}, draft.trajectories)


FORMAT = EpisodeFormat(name="prime_rl", title="rollouts of prime-rl", recognizes=is_prime_rl, read=read)
