"""Replacing a file leaves the old content or the new."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from rllm_core.files import CHUNK, sha256, write_atomically


def test_a_file_is_replaced_and_nothing_else_stays(tmp_path: Path) -> None:
    file = tmp_path / "plugins.json"
    write_atomically(file, "old")
    write_atomically(file, "new ü")
    assert file.read_text(encoding="utf-8") == "new ü"
    assert list(tmp_path.iterdir()) == [file]


def test_failed_write_leaves_only_the_old_content(tmp_path: Path) -> None:
    file = tmp_path / "plugins.json"
    write_atomically(file, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(file, "new \ud800")
    assert file.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1])
def test_a_digest_is_of_the_whole_content(tmp_path: Path, size: int) -> None:
    content = bytes(index % 251 for index in range(size))
    (tmp_path / "weights").write_bytes(content)
    assert sha256(tmp_path / "weights") == hashlib.sha256(content).hexdigest()
