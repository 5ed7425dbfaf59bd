"""The maximum number of tokens of a row, and what happens to longer rows. They are counted, and the first are named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from rllm_core.contracts.params import Params
from rllm_core.data.types import Episode, Trajectory
from rllm_core.errors import ConfigError
from rllm_core.notices import warn_once

LongRows = Literal["cut", "drop", "error"]
"""Outcome of rows with too many tokens."""


class RowParams(Params):
    """Options of every stage that brings rows of data instead of rollouts."""

    max_length: int | None = Field(None, ge=2)
    """Maximum number of tokens of a row, with its prompt. null: the longest context of the run, which is always a
    limit."""
    long_rows: LongRows = "cut"
    """Treatment of longer rows. `cut`: their later tokens are cut off. `drop`: they are dropped. `error`: the run
    stops."""


NAMED = 3
"""Number of rows that a warning names."""


@dataclass(frozen=True)
class RowLimit:
    """The limit of a run's rows."""

    tokens: int
    is_context: bool
    """True if it is the engine's `max_context`, and False if it is an option of a stage."""
    long_rows: LongRows = "cut"

    @classmethod
    def lowest(cls, params: RowParams, max_context: int) -> RowLimit:
        """Return the smaller of the stage's option and `max_context`. A longer row cannot be computed exactly."""
        if params.max_length is not None and params.max_length <= max_context:
            return cls(params.max_length, is_context=False, long_rows=params.long_rows)
        return cls(max_context, is_context=True, long_rows=params.long_rows)

    @property
    def text(self) -> str:
        """The limit with its key."""
        return (
            f"the run's longest context ({self.tokens:,} tokens)" if self.is_context else f"--max-length {self.tokens}"
        )

    @property
    def remedy(self) -> str:
        """The keys that raise the limit."""
        if not self.is_context:
            return "Raise --max-length"
        return "If the model allows it, raise training.max_length (verl: actor_rollout_ref.rollout.max_model_len)"


class RowFitter:
    """Cuts or drops rows that are longer than a limit, counts them, and warns about the first ones."""

    def __init__(self, limit: RowLimit) -> None:
        self._limit = limit
        self.cut: list[str] = []
        self.dropped: list[str] = []
        self.empty: list[str] = []
        self._has_warned = False

    def fit(self, episode: Episode, *, together: bool = False) -> Episode:
        """Return an episode in which no row is longer than the limit. It has no trajectories if it is dropped.

        Args:
            episode: the rows of a task.
            together: True to drop all trajectories if one has no trained token left, for completions to compare.

        Raises:
            ConfigError: a row is longer, and `RowLimit.long_rows` is ``error``.
        """
        trajectories, limit = episode.trajectories, self._limit
        if not _has_trained(trajectories, together=together):
            self.empty.append(episode.task_id)
            return replace(episode, trajectories=[])
        longest = max(map(row_length, trajectories))
        if longest <= limit.tokens:
            return episode
        if limit.long_rows == "error":
            raise ConfigError(
                "row-too-long",
                f"Row {episode.task_id!r} has {longest:,} tokens, more than {limit.text}.",
                f"{limit.remedy}, or set --long-rows to cut or drop.",
            )
        fitting = [] if limit.long_rows == "drop" else [_cut_off(each, limit.tokens) for each in trajectories]
        if not _has_trained(fitting, together=together):
            self.dropped.append(episode.task_id)
            return replace(episode, trajectories=[])
        self.cut.append(episode.task_id)
        return replace(episode, trajectories=[each for each in fitting if each.response_length])

    def report(self, prefix: str) -> dict[str, float]:
        """Return the numbers of rows since the last report that were cut or dropped, without zeros.

        The first report with such rows also prints a warning.
        """
        counts = {"rows_cut": len(self.cut), "rows_dropped": len(self.dropped) + len(self.empty)}
        metrics = {f"{prefix}/{name}": float(count) for name, count in counts.items() if count}
        if metrics and not self._has_warned:
            self._has_warned = True
            self._warn(prefix)
        self.cut, self.dropped, self.empty = [], [], []
        return metrics

    def _warn(self, prefix: str) -> None:
        why = f"longer than {self._limit.text}"
        for outcome, metric, rows in (("cut off", "cut", self.cut), ("dropped", "dropped", self.dropped)):
            if rows:
                warn_once(
                    f"{_list_rows(rows)} {why}: {outcome}. {prefix}/rows_{metric} counts them. {self._limit.remedy}."
                )
        if self.empty:
            warn_once(f"{_list_rows(self.empty)} without a trained token: dropped. {prefix}/rows_dropped counts them.")


def report_rows(fitters: Mapping[str, RowFitter]) -> dict[str, float]:
    """Return the reports of validation rows by data source."""
    reports = [fitter.report(f"val/{source}") for source, fitter in fitters.items()]
    return {name: count for report in reports for name, count in report.items()}


def row_length(trajectory: Trajectory) -> int:
    """Return the number of tokens in the longest row of a trajectory. It has several if its history was rewritten."""
    return max((step.span.end - step.span.segment_start for step in trajectory.steps), default=0)


def _has_trained(trajectories: Iterable[Trajectory], *, together: bool) -> bool:
    lengths = [trajectory.response_length for trajectory in trajectories]
    return bool(lengths) and (all(lengths) if together else any(lengths))


def _cut_off(trajectory: Trajectory, tokens: int) -> Trajectory:
    """Return a trajectory without the tokens after the limit, and without the sampler's log-probs."""
    cut = Trajectory(trajectory.name, reward=trajectory.reward, uid=trajectory.uid, info=trajectory.info)
    for step in trajectory.steps:
        room = tokens - len(step.prompt_ids)
        if room > 0:
            cut.add_step(step.prompt_ids, step.response_ids[:room], None, text=step.text, messages=step.messages)
    return cut


def _list_rows(rows: list[str]) -> str:
    """Return the subject and the verb of a sentence about rows. Stored rollouts of a task are its rows."""
    different = [*dict.fromkeys(rows)]
    first = ", ".join(map(repr, different[:NAMED]))
    if len(different) > NAMED:
        return f"{len(rows)} rows, such as {first}, are"
    return f"row {first} is" if len(different) == 1 else f"rows {first} are"
