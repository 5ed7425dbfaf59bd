"""Files of episodes: whole ones come back, unfinished ends are skipped, damage is named by file and line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error

from rllm_core.data.codec import episode_to_json
from rllm_view.rescoring.source import EpisodesError, read_file


@pytest.fixture
def content(episodes: Callable[..., Any]) -> list[bytes]:
    """Three lines."""
    found = episodes({"t": [0.0, 0.5, 1.0]})
    return [json.dumps(episode_to_json(episode)).encode() + b"\n" for episode in found]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_episodes_are_read_compressed_or_not(tmp_path: Path, content: list[bytes], pack: Callable[..., bytes]) -> None:
    file = tmp_path / "whatever"
    file.write_bytes(pack(b"".join(content)))
    read = read_file(file)
    assert [episode.id for episode in read.rounds[0]] == ["t:0", "t:1", "t:2"]
    assert read.skipped == 0


def test_episodes_come_back_by_the_round_they_were_played_in(tmp_path: Path, content: list[bytes]) -> None:
    file = tmp_path / "rounds.jsonl"
    lines = [json.loads(line) | told for line, told in zip(content, ({}, {"round": 0}, {"round": 2}), strict=True)]
    file.write_text("\n".join(map(json.dumps, lines)))
    assert [[entry.id for entry in played] for played in read_file(file).rounds] == [["t:0", "t:1"], [], ["t:2"]]


def test_a_last_line_cut_off_is_skipped_and_counted(tmp_path: Path, content: list[bytes]) -> None:
    file = tmp_path / "cut.jsonl"
    file.write_bytes(b"".join(content)[:-30])
    read = read_file(file)
    assert [episode.id for episode in read.rounds[0]] == ["t:0", "t:1"]
    assert read.skipped == 1


def test_a_last_line_that_only_lacks_its_end_is_whole(tmp_path: Path, content: list[bytes]) -> None:
    file = tmp_path / "whole.jsonl"
    file.write_bytes(b"".join(content).rstrip())
    assert len(read_file(file).rounds[0]) == 3


def test_of_a_compressed_file_cut_off_what_is_whole_is_used(tmp_path: Path, episodes: Callable[..., Any]) -> None:
    # Lengths that differ, so that there is something left to compress in each line.
    lines = [
        json.dumps(episode_to_json(entry)).encode() + b"\n" for entry in episodes({"t": [0.1 * i for i in range(99)]})
    ]
    packed = gzip.compress(b"".join(lines))
    file = tmp_path / "cut.jsonl.gz"
    file.write_bytes(packed[: len(packed) // 2])
    read = read_file(file)
    assert read.skipped == 1
    assert 0 < len(read.rounds[0]) < 99
    assert [episode.id for episode in read.rounds[0]] == [f"t:{index}" for index in range(len(read.rounds[0]))]


@pytest.mark.parametrize(
    ("line", "said"), [(b"{}\n", "schema_version"), (b"nonsense\n", "JSONDecodeError"), (b"[1]\n", "TypeError")]
)
def test_a_damaged_line_is_named(tmp_path: Path, content: list[bytes], line: bytes, said: str) -> None:
    file = tmp_path / "damaged.jsonl"
    file.write_bytes(content[0] + line + content[2])
    with expect_error(EpisodesError, "wrong-file-type", "damaged.jsonl, line 2", said) as error:
        read_file(file)
    assert error.value.exit_code == 2


def test_damage_within_a_compressed_file_is_named(tmp_path: Path, content: list[bytes]) -> None:
    packed = bytearray(gzip.compress(b"".join(content)))
    packed[10] = 0xFF
    file = tmp_path / "damaged.jsonl.gz"
    file.write_bytes(packed)
    with expect_error(EpisodesError, "wrong-file-type", "damaged.jsonl.gz"):
        read_file(file)


def test_another_schema_version_is_refused_by_name(tmp_path: Path, content: list[bytes]) -> None:
    file = tmp_path / "newer.jsonl"
    file.write_bytes(content[0].replace(b'"schema_version": 1', b'"schema_version": 7'))
    with expect_error(EpisodesError, "schema-too-new", "line 1", " 7,"):
        read_file(file)
