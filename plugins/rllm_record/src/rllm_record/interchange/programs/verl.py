"""Rollouts of verl (``rollout_data_dir``): a prompt, a response and a score per line. This format is only read.

A file contains the rollouts of one step, and neither tokens nor log-probs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rllm_record.interchange.drafts import EpisodeDraft, JsonData, make_episodes
from rllm_record.interchange.formats import EpisodeFormat
from rllm_record.interchange.json_files import first_object, read_objects
from rllm_record.interchange.rows import PromptNames, is_number, row_draft, step_files
from rllm_record.steps.rows import RecordedEpisode

FIELDS = frozenset({"input", "output", "gts", "score", "step"})


def is_verl(path: Path) -> bool:
    """True if this is a file of verl's rollouts, or a directory of such files."""
    files = step_files(path, "*.jsonl")
    return bool(files) and first_object(files[0]).keys() >= FIELDS


def read(path: Path) -> Iterator[RecordedEpisode]:
    """Yield an episode for each rollout. The reward is ``score``."""
    names = PromptNames()
    rows = (row for file in step_files(path, "*.jsonl") for row in read_objects(file))
    return make_episodes(_draft(row, names) for row in rows)


def _draft(row: JsonData, names: PromptNames) -> EpisodeDraft:
    rewards = {"score": float(row["score"])} if is_number(row["score"]) else {}
    extra = {key: value for key, value in row.items() if key not in FIELDS - {"gts"}}
    return row_draft(row["step"], row["input"], row["output"], rewards, extra, names)


FORMAT = EpisodeFormat(name="verl", title="rollouts of verl", recognizes=is_verl, read=read)
