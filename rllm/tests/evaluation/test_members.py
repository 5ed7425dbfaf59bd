"""A file of lines survives whatever ends its process."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from expecting import expect_error

from rllm.evaluation.members import MemberFile, read_lines
from rllm_core.errors import RllmError

LINES = ["one", "zwei \u00e4", "three" * 1000]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write(tmp_path / "lines.gz", LINES)
    return tmp_path / "lines.gz"


def write(path: Path, lines: list[str]) -> None:
    file = MemberFile(path)
    for line in lines:
        file.append(line)
    file.close()


def test_lines_are_read_as_they_were_written(file: Path) -> None:
    assert [line.rstrip() for line in read_lines(file)] == LINES
    with gzip.open(file, "rt", encoding="utf-8") as unpacked:
        assert [line.rstrip() for line in unpacked] == LINES


def test_what_is_cut_off_anywhere_is_left_out_and_written_over(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    for end in range(0, len(whole), 7):
        file.write_bytes(whole[:end])
        kept = [line.rstrip() for line in read_lines(file)]
        assert kept == LINES[: len(kept)]
        write(file, LINES[len(kept) :])
        assert file.read_bytes() == whole


def test_damage_is_no_cut(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[40] ^= 0xFF
    file.write_bytes(content)
    with expect_error(RllmError, "damaged-file"):
        list(read_lines(file))
