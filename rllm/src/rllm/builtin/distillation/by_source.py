"""The teacher `by_source`: several teachers in one run. The data source of a task selects its teacher."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.params import Params
from rllm_core.contracts.teacher import DistributionTeacher, Teacher, TeacherPlugin, TeacherSetup
from rllm_core.data.batch import TokenBatch
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry
from rllm_core.schema.section import Choice, Names


class BySourceParams(Params):
    """Options of the teacher ``by_source``."""

    teachers: Annotated[dict[str, Choice], Names("teacher")] = Field(min_length=1)
    """A teacher for each data source of the tasks: a name, or a mapping with a name and options. For example `{math:
    {name: model, path: ./math}, code: policy:Be brief.}`."""


KEY = "rllm.teacher.teachers"
ROW_COLUMNS = ("trajectory", "group", "role", "weight_version")

TeacherChoice = PluginChoice[TeacherPlugin[Any]]


class BySource:
    """Scores each row with the teacher of its task's data source."""

    def __init__(self, params: BySourceParams, setup: TeacherSetup) -> None:
        self._params = params
        self._teachers: dict[str, Teacher] = {
            source: chosen.registered.load()(chosen.params, setup) for source, chosen in load_teachers(params).items()
        }

    async def logprobs(self, batch: TokenBatch) -> NDArray[np.float32]:
        """Return log-probs, (n_token,), of the sampled tokens. Other tokens get 0.

        Raises:
            ConfigError: a row's data source has no teacher.
        """
        logprobs = np.zeros(len(batch.tokens), np.float32)
        for source, rows in self._rows(batch).items():
            part, tokens = select_rows(batch, rows)
            scored = np.asarray(await self._teachers[source].logprobs(part), np.float32)
            logprobs[tokens] = np.where(part.loss_mask, scored, np.float32(0))
        return logprobs

    async def top_logprobs(self, batch: TokenBatch, k: int | None) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return ids and log-probs, (n_sampled, k) each, of the k likeliest tokens at each sampled token.

        Raises:
            ConfigError: a row's data source has no teacher, or two teachers return different numbers of tokens.
        """
        found = []
        for source, rows in self._rows(batch).items():
            part, tokens = select_rows(batch, rows)
            teacher = self._teachers[source]
            assert isinstance(teacher, DistributionTeacher), "the plan has teachers with distributions"
            found.append((tokens[batch.loss_mask], await teacher.top_logprobs(part, k)))
        widths = {ids.shape[1] for _, (ids, _) in found}
        if len(widths) > 1:
            raise ConfigError(
                "teachers-of-different-size",
                f"The teachers return {' and '.join(map(str, sorted(widths)))} tokens for a position.",
                "Set option k of stage topk_kl to the lowest number.",
            )
        shape = int(batch.loss_mask.sum()), *widths
        all_ids, all_logprobs = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        for places, (ids, logprobs) in found:
            all_ids[places], all_logprobs[places] = ids, logprobs
        return all_ids, all_logprobs

    def _rows(self, batch: TokenBatch) -> dict[str, NDArray[np.bool_]]:
        """Return which rows each teacher scores, (n_row,) for each data source in the batch."""
        sources = np.array([source for group in batch.groups for source in _sources(group.metadata)], np.object_)
        of_rows = sources[batch.trajectory]
        check_sources(self._params, dict.fromkeys(of_rows))
        return {source: of_rows == source for source in dict.fromkeys(of_rows)}


def _sources(metadata: Iterable[Mapping[str, Any]]) -> list[str]:
    return [str(entry["data_source"]) for entry in metadata]


def select_rows(batch: TokenBatch, rows: NDArray[np.bool_]) -> tuple[TokenBatch, NDArray[np.bool_]]:
    """Return a batch of only the chosen rows, and which tokens of the batch it has, (n_token,).

    The groups stay complete, so that `TokenBatch.trajectory` and `TokenBatch.group` are still indices into them.

    Args:
        batch: a batch.
        rows: (n_row,) True for the rows to select.
    """
    tokens = np.repeat(rows, batch.row_lengths)
    columns = {name: getattr(batch, name)[rows] for name in ROW_COLUMNS}
    for name, values in vars(batch).items():
        if isinstance(values, np.ndarray) and name not in (*ROW_COLUMNS, "row_offsets"):
            columns[name] = values[tokens]
    offsets = np.concatenate(([0], np.cumsum(batch.row_lengths[rows]))).astype(np.int64)
    return replace(batch, row_offsets=offsets, targets=None, **columns), tokens


def load_teachers(params: BySourceParams) -> dict[str, TeacherChoice]:
    """Return the chosen teachers by data source.

    Raises:
        ConfigError: a teacher does not exist, its options are wrong, or it has several teachers itself.
    """
    return _load_teachers(params.model_dump_json())


@lru_cache(8)
def _load_teachers(json: str) -> dict[str, TeacherChoice]:
    registry, found = Registry.load(), {}
    for source, entry in BySourceParams.model_validate_json(json).teachers.items():
        found[source] = choose(registry, "teacher", entry, f"{KEY}.{source}")
        if isinstance(found[source].params, BySourceParams):
            raise ConfigError(
                "bad-choice",
                f"{KEY}.{source} is a teacher with several teachers.",
                f"Write its teachers directly into {KEY}.",
            )
    return found


def list_teachers(chosen: TeacherChoice) -> list[TeacherChoice]:
    """Return the teachers of a run's choice: the teachers of `by_source`, or the only teacher."""
    return [*load_teachers(chosen.params).values()] if isinstance(chosen.params, BySourceParams) else [chosen]


def check(params: BySourceParams) -> None:
    """Run the checks of all teachers, which raise ConfigError."""
    for chosen in load_teachers(params).values():
        if chosen.plugin.check is not None:
            chosen.plugin.check(chosen.params)


def read_sources(params: BySourceParams) -> dict[str, str]:
    """Return the sources of all teachers."""
    return {
        f"{source}: {name}": text
        for source, chosen in load_teachers(params).items()
        if chosen.plugin.sources is not None
        for name, text in chosen.plugin.sources(chosen.params).items()
    }


def check_sources(params: BySourceParams, sources: Iterable[str]) -> None:
    """Raise ConfigError if a data source has no teacher."""
    for source in sources:
        if source not in params.teachers:
            raise ConfigError(
                "task-without-teacher",
                f"Tasks with the data source {source!r} have no teacher. {KEY} has {', '.join(params.teachers)}.",
                f"Add {KEY}.{source}, or --teacher {source}=DIRECTORY. Column `data_source` sets the source.",
            )


def check_tasks(params: BySourceParams, tasks: Iterable[Task]) -> None:
    """Raise ConfigError if the data source of a task has no teacher."""
    check_sources(params, dict.fromkeys(task.data_source for task in tasks))
