"""The tracker `record`. It writes the record of each step to the run directory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.observer import Observer
from rllm_core.contracts.renderer import Renderer
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import Episode, Task
from rllm_record.steps.accounting import Accounting, recorded_update
from rllm_record.steps.files import DIRECTORY, StepFiles
from rllm_record.steps.rows import Sampler
from rllm_record.steps.schemas import Content


def tokenizer_of(renderer: Renderer) -> str | None:
    """Return the `Sampler.tokenizer` of a run with this renderer. None if the tokenizer is unknown."""
    try:
        from rllm_backend_kit.portable_renderer import tokenizer_digest
    except ModuleNotFoundError:
        # The backend comes from a different package, and makes its own renderer.
        return None
    return tokenizer_digest(renderer)


class SeenTokens:
    """The set of tokens that have occurred so far."""

    def __init__(self, known: Iterable[int] = ()) -> None:
        """Start with `known`, the ids of tokens that are already recorded."""
        self._seen = np.zeros(0, np.bool_)
        self._mark(np.array(sorted(known), np.int32))

    def new_texts(self, episodes: Iterable[Episode], renderer: Renderer) -> dict[int, str]:
        """Return token id -> text for the tokens of `episodes` that have not occurred before."""
        before = self._seen.copy()
        for episode in episodes:
            for trajectory in episode.trajectories:
                self._mark(trajectory.tokens.ids)
        new = self._seen.copy()
        new[: len(before)] &= ~before
        ids = np.flatnonzero(new).astype(np.int32)
        return dict(zip(ids.tolist(), renderer.token_texts(ids), strict=True)) if len(ids) else {}

    def _mark(self, ids: NDArray[np.int32]) -> None:
        beyond = int(ids.max(initial=-1)) + 1 - len(self._seen)
        if beyond > 0:
            self._seen = np.append(self._seen, np.zeros(beyond, np.bool_))
        self._seen[ids] = True


class Recorder(Observer):
    """Records every finished step. A thread writes the files while the next step runs."""

    def __init__(self, run: TrackedRun, content: Content) -> None:
        self._files = StepFiles(run.directory / DIRECTORY)
        self._content = content
        self._thread = ThreadPoolExecutor(1, "rllm-record")
        self._written: Future[None] | None = None
        self._accounting = Accounting()
        self._seen_tokens = SeenTokens()
        temperature = run.config["sampling"]["train"]["temperature"]
        # If an environment variable sets the value, it is a string here.
        self._temperature = float(temperature) if isinstance(temperature, int | float) else None
        self._tasks: dict[str, Any] = {}
        self._backend = run.config["rllm"]["backend"]
        self._max_response_length = run.config["data"]["max_response_length"]

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        """Delete the record of steps that the run repeats, and load the trajectories that wait."""
        self._files.forget_from(first_step)
        self._seen_tokens = SeenTokens(self._files.vocabulary(first_step))
        if first_step - 1 in self._files.steps():
            self._accounting = Accounting(self._files.outcomes(first_step - 1))

    def on_batch_start(self, step: TrainStep) -> None:
        self._tasks = _data_of(step.tasks)

    def on_batch_end(self, step: TrainStep) -> None:
        # Tasks of batches between the first and the last batch of the step are not available any more.
        account = self._accounting.account_for(step, self._tasks | _data_of(step.tasks))
        update = sampler = None
        if self._content == "tokens":
            update = recorded_update(step, account.trained, self._backend, self._max_response_length)
            sampler = self._sampler_of(step)
        tables = self._files.tables_of(
            account.episodes,
            account.outcomes,
            self._content,
            sampler,
            update=update,
            vocabulary=self._new_texts(step),
        )
        self._wait()
        self._written = self._thread.submit(self._files.write_tables, step.global_step, tables)

    def state_dict(self) -> dict[str, Any]:
        """Wait for the files of the last step, so that no checkpoint is newer than the record."""
        self._wait()
        return {}

    def _wait(self) -> None:
        """Wait for the last write.

        Raises:
            RecordError: the step could not be written.
        """
        if self._written is not None:
            written, self._written = self._written, None
            written.result()

    def _sampler_of(self, step: TrainStep) -> Sampler:
        tokenizer = None if step.renderer is None else tokenizer_of(step.renderer)
        return Sampler(tokenizer=tokenizer, temperature=self._temperature)

    def _new_texts(self, step: TrainStep) -> dict[int, str] | None:
        """Return the text of each token that occurs first in this step. None if no text is recorded."""
        if self._content != "tokens" or step.renderer is None:
            return None
        return self._seen_tokens.new_texts(step.generated, step.renderer)

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """Do nothing. The run directory already contains the metrics."""

    def close(self) -> None:
        try:
            self._wait()
        finally:
            self._thread.shutdown()


def _data_of(tasks: list[Task]) -> dict[str, Any]:
    return {task.id: task.data for task in tasks}
