"""The tracker `tensorboard`: event files, for ``tensorboard --logdir``."""

from __future__ import annotations

import os.path
import time
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from rllm.builtin.trackers.episode_table import TAG, EpisodeTableParams, as_markdown, table_rows
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.contracts.train_step import TrainStep

if TYPE_CHECKING:
    from tensorboardX.event_file_writer import EventsWriter


class TensorboardParams(EpisodeTableParams):
    directory: str | None = Field(None, min_length=1)
    """Directory of the event files, relative to the run. null: tensorboard."""

    @field_validator("directory")
    @classmethod
    def _check_not_written_by_the_run(cls, directory: str | None) -> str | None:
        if directory is None:
            return None
        from rllm.runs.run_directory import WRITTEN  # listing plugins must not wait for this import
        from rllm_record.run_files import LOCK

        first, *_ = parts = PurePath(os.path.normpath(directory)).parts or (".",)
        if parts == ("tensorboard",):
            return None  # the default, in another spelling
        if first in {*WRITTEN, LOCK} - {"tensorboard"}:
            raise PydanticCustomError(
                "written_by_the_run",
                "the run itself writes {first} in its directory: choose another name, or null for tensorboard",
                {"first": first},
            )
        return str(PurePath(directory))


DIRECTORY = "tensorboard"
SECONDS_BETWEEN_FLUSHES = 1.0
"""A flush waits for the disk; short steps should not."""


class TensorboardTracker(Observer):
    """Tracker that writes a step's metrics as scalars under their own names, and config and trajectories as text.

    It uses tensorboardX's plain `EventsWriter`, not its `SummaryWriter`, which writes in a thread. If that thread dies
    because the disk is full, the eleventh call waits for it forever. `SummaryWriter` would also rename ``pass@1``.
    """

    def __init__(self, run: TrackedRun, params: TensorboardParams) -> None:
        self._directory = run.directory / Path(params.directory or DIRECTORY).expanduser()
        self._config = run.config
        self._params = params
        self._writer: EventsWriter | None = None
        self._last_flush = 0.0

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        self._open(first_step)

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """Add one event. NaN and infinite numbers are shown as such."""
        from tensorboardX.proto.summary_pb2 import Summary

        writer = self._writer or self._open(0)
        values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in metrics.items()]
        self._write(writer, step=global_step, summary=Summary(value=values))
        now = time.monotonic()
        if now - self._last_flush >= SECONDS_BETWEEN_FLUSHES:
            self._last_flush = now
            writer.flush()

    def on_batch_end(self, step: TrainStep) -> None:
        """Show a few trajectories as a text."""
        from tensorboardX.summary import text

        if rows := table_rows(step, self._params):
            writer = self._writer or self._open(0)
            self._write(writer, step=step.global_step, summary=text(TAG, as_markdown(rows)))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self, first_step: int) -> EventsWriter:
        import yaml
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog
        from tensorboardX.summary import text

        self._directory.mkdir(parents=True, exist_ok=True)
        # The rest of the name has whole seconds: two starts within one would write to one file. Files are read in
        # order of their names.
        self._writer = EventsWriter(str(self._directory / "events"), f".{time.time_ns()}")
        # This event makes earlier values of this and later steps invalid. -1: the validation before the first step.
        self._write(self._writer, step=first_step or -1, session_log=SessionLog(status=SessionLog.START))
        config = yaml.safe_dump(dict(self._config), sort_keys=False, allow_unicode=True)
        self._write(self._writer, step=first_step, summary=text("config", f"```yaml\n{config}```"))
        self._writer.flush()
        return self._writer

    @staticmethod
    def _write(writer: EventsWriter, **fields: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        writer.write_event(Event(wall_time=time.time(), **fields))
