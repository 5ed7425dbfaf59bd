"""EpisodeLog: every training episode on disk, one compressed JSON Lines file per step (`rllm.episode_logging`)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from rllm_core.codec import episode_from_json, episode_to_json
from rllm_core.contracts.observer import Observer
from rllm_core.pipeline.step import TrainStep
from rllm_core.types import Episode


class EpisodeLog(Observer):
    """Writes ``step_000012.jsonl.gz``: the episodes of the step with index 12, masked ones included."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        """Drop episodes of steps that are made again, by a resumed run or one that replaces another."""
        for file in self._folder.glob("step_*.jsonl.gz"):
            number = file.name.removeprefix("step_").removesuffix(".jsonl.gz")
            if number.isdecimal() and int(number) >= first_step:
                file.unlink()

    def on_batch_end(self, step: TrainStep) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / f"step_{step.global_step:06d}.jsonl.gz"
        beside = file.with_suffix(".tmp")
        # No time stamp inside: the same run gives the same bytes.
        with beside.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed:
            for episode in step.generated:
                packed.write(json.dumps(episode_to_json(episode)).encode() + b"\n")
        beside.replace(file)


def read_episodes(file: Path) -> Iterator[Episode]:
    """The episodes of one file."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield episode_from_json(json.loads(line))
