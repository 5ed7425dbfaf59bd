"""Columns of the two tables of `StepIndex`, read without text and tokens."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from rllm_record.steps import StepFiles, require_known_version
from rllm_record.steps.errors import unreadable

TABLES = """
CREATE MACRO natural_key(words) AS array_to_string(list_transform(regexp_extract_all(words, '[0-9]+|[^0-9]+'),
    lambda part: CASE WHEN part[1] BETWEEN '0' AND '9'
        THEN printf('%04d', length(ltrim(part, '0'))) || ltrim(part, '0') ELSE part END), '');
CREATE TABLE played (
    trajectory VARCHAR, episode VARCHAR, played_step INTEGER, round INTEGER, task_id VARCHAR, data_source VARCHAR,
    is_correct BOOLEAN, ending VARCHAR, error VARCHAR, tries INTEGER, name VARCHAR, reward_given DOUBLE,
    reward_used DOUBLE, turns INTEGER, sampled_tokens INTEGER, tokens INTEGER);
CREATE TABLE fates (
    step INTEGER, trajectory VARCHAR, fate VARCHAR, rule VARCHAR, group_id VARCHAR, peers INTEGER, name VARCHAR,
    episode VARCHAR, played_step INTEGER, round INTEGER, estimator VARCHAR, baseline DOUBLE, advantage DOUBLE,
    group_key VARCHAR, trajectory_key VARCHAR);
"""
"""Keys order text naturally: a number in it has its length before it, so 2 comes before 10."""
_OF_EPISODE = ("uid", "step", "round", "task_id", "data_source", "is_correct", "ending", "error", "tries")
_OF_TRAJECTORY = ("uid", "name", "reward_given", "reward_used")
_OF_TURN = ("response_start", "end")
_LEAVES = [
    *_OF_EPISODE,
    *(f"trajectories.list.element.{name}" for name in _OF_TRAJECTORY),
    *(f"trajectories.list.element.steps.list.element.{name}" for name in _OF_TURN),
]
_PLAYED = """
INSERT INTO played
SELECT t.uid, e.uid, e.step, round, task_id, data_source, is_correct, ending, error, tries, t.name, t.reward_given,
    t.reward_used, len(t.steps),
    coalesce(list_sum(list_transform(t.steps, lambda turn: turn."end" - turn.response_start)), 0),
    coalesce(list_max(list_transform(t.steps, lambda turn: turn."end")), 0)
FROM (SELECT * EXCLUDE trajectories, unnest(trajectories) AS t FROM new_played) e
"""
_FATES = """
INSERT INTO fates
SELECT step, trajectory, fate, rule, "group", len(peers), name, episode, played_step, round,
    estimator, baseline, advantage, natural_key("group"), natural_key(trajectory)
FROM new_fates
"""
_LATER = {"estimator": pa.string(), "baseline": pa.float64(), "advantage": pa.float64()}
"""Columns that older records do not have."""


def played(record: Path, step: int) -> pa.Table:
    """Return the episodes of a step, without text and tokens.

    Raises:
        RecordError: the file cannot be read.
    """
    place = record / "episodes" / f"step_{step:06d}.parquet"
    try:
        with pq.ParquetFile(place) as file:
            require_known_version(place, file.schema_arrow.metadata)
            table = file.read(columns=_LEAVES)
    except (OSError, pa.ArrowException) as error:
        raise unreadable(place, error) from error
    return table.select([*_OF_EPISODE, "trajectories"]).replace_schema_metadata(None)


def outcomes(record: Path, step: int) -> pa.Table:
    """Return the outcomes of a step's trajectories. Raises the errors of `played`."""
    table = StepFiles(record).outcome_table(step)
    for name, type_ in _LATER.items():
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(len(table), type_))
    wanted = ["step", "trajectory", "fate", "rule", "group", "peers", "name", "episode", "played_step", "round"]
    return table.select([*wanted, *_LATER])


def insert(connection: duckdb.DuckDBPyConnection, new_played: pa.Table, new_fates: pa.Table) -> None:
    """Add rows to both tables."""
    connection.register("new_played", new_played)
    connection.register("new_fates", new_fates)
    try:
        connection.execute(_PLAYED)
        connection.execute(_FATES)
    finally:
        connection.unregister("new_played")
        connection.unregister("new_fates")
