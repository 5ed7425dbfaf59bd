"""Episodes of ours that are written in a format of another project, and read again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rllm_record.interchange.programs import atif, verifiers_traces
from rllm_record.steps import RecordedEpisode

from .made_episodes import contents_of, episodes

Convert = Callable[[Any], Any]
FORMATS = {
    "atif": (atif.documents_of, atif.read_documents),
    "verifiers": (verifiers_traces.lines_of, verifiers_traces.read_lines),
}


def through(written: Convert, read: Convert, made: list[RecordedEpisode]) -> list[RecordedEpisode]:
    return list(read([json.loads(json.dumps(each, allow_nan=False)) for each in written(made)]))


@pytest.mark.parametrize("name", FORMATS)
@given(made=st.lists(episodes(), max_size=2))
def test_written_episodes_are_read_equal(name: str, made: list[RecordedEpisode]) -> None:
    assert [*map(contents_of, through(*FORMATS[name], made))] == [*map(contents_of, made)]


@pytest.mark.parametrize("names", [("atif", "verifiers"), ("verifiers", "atif")])
@given(made=st.lists(episodes(), max_size=2))
def test_two_formats_in_sequence_lose_nothing(names: tuple[str, str], made: list[RecordedEpisode]) -> None:
    again = through(*FORMATS[names[1]], through(*FORMATS[names[0]], made))
    assert [*map(contents_of, again)] == [*map(contents_of, made)]
