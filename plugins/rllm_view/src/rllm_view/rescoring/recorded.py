"""Episodes of a run's record (`rllm.record=tokens`), which rllm-record writes and reads."""

from __future__ import annotations

from pathlib import Path

from rllm_core.data.types import Episode
from rllm_core.errors import RllmError

PARQUET = ".parquet"


class UnreadableError(RllmError):
    """A file of a record cannot be read."""


def can_be_scored(file: Path) -> bool:
    """Whether a file of episodes has tokens. What is not of a record has."""
    if file.suffix != PARQUET:
        return True
    from rllm_record.steps.files import holds_tokens

    return holds_tokens(file)


def read_recorded(file: Path) -> list[list[Episode]]:
    """The episodes of a step, by the round they were played in; at least one round.

    Raises:
        UnreadableError: the file is not a record with tokens.
    """
    from rllm_record.steps.errors import RecordError
    from rllm_record.steps.files import read_episodes

    try:
        played = read_episodes(file)
    except RecordError as error:
        raise UnreadableError(error.code, error.message, error.hint) from error
    last = max((each.round for each in played), default=0)
    return [[each.episode for each in played if each.round == number] for number in range(last + 1)]
