"""Formats by name and by contents, and errors of their files."""

from __future__ import annotations

import gzip
import json
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from click.testing import CliRunner
from expecting import expect_error
from recorded_episodes import episodes_of, record_rollouts
from written_distribution import write_distribution

from rllm_core.plugins.discovery import BLOCK_VARIABLE
from rllm_record.command import record
from rllm_record.interchange.formats import (
    GROUP,
    FormatError,
    episode_formats,
    format_of,
    read_file,
    stream_file,
    write_file,
)
from rllm_record.stored import StoredParams, read_tasks
from rllm_record.stored_episodes import find_episodes, read_batches


@pytest.fixture(autouse=True)
def formats_are_found_again() -> Iterator[None]:
    episode_formats.cache_clear()
    yield
    episode_formats.cache_clear()


def write(path: Path, name: str, *steps: dict[str, list[float]]) -> Path:
    """Write a file with the rollouts of each step."""
    made = [each for step, rewards in enumerate(steps) for each in record_rollouts(step, 0, episodes_of(rewards))]
    write_file(path, made, name)
    return path


@pytest.mark.parametrize("name", ["atif", "verifiers"])
def test_stored_episodes_may_have_any_format(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / "file.jsonl", name, {"a": [1.0, 0.0]}, {"a": [0.5]})
    tasks = read_tasks(StoredParams(path=str(file)))
    assert [(task.id, len(task.rollouts)) for task in tasks] == [("a@0", 2), ("a@1", 1)]
    assert find_episodes(file).files == ((0, file),)
    assert [[each.id for each in batch] for batch in read_batches(file)] == [["a:0", "a:1"], ["a:0"]]
    assert tasks[0].rollouts[0].episode.trajectories[0].tokens.ids.tolist() == [1, 2, 0, 3, 3]


def test_export_writes_any_stored_episodes(run: Path, keep: Any, tmp_path: Path) -> None:
    keep(0, {"a": [1.0]})
    keep(1, {"a": [0.0]})
    for source, file, name in ((run, "one.jsonl", "atif"), (tmp_path / "one.jsonl", "two.jsonl", "verifiers")):
        result = CliRunner().invoke(record, ["export", str(source), str(tmp_path / file), "--format", name])
        assert result.output == f"wrote 2 episodes to {tmp_path / file}\n"
    assert [each.trajectories[0].reward_given for each in read_file(tmp_path / "two.jsonl")] == [1.0, 0.0]


def test_export_does_not_replace_its_source(tmp_path: Path) -> None:
    file = write(tmp_path / "file.jsonl", "atif", {"a": [1.0]})
    before = file.read_bytes()
    result = CliRunner().invoke(record, ["export", str(file), str(file), "--format", "verifiers"])
    assert result.exit_code == 2
    assert file.read_bytes() == before


@pytest.mark.parametrize("name", ["atif", "verifiers"])
def test_export_needs_memory_for_one_episode(tmp_path: Path, name: str) -> None:
    source, number = tmp_path / "source.jsonl", 300
    write(source, name, {"a": [1.0]})
    source.write_text((source.read_text().rstrip()[:-1] + f', "padding": "{"x" * 20_000}"}}\n') * number)
    assert source.stat().st_size > 5_000_000
    tracemalloc.start()
    result = CliRunner().invoke(record, ["export", str(source), str(tmp_path / "file.jsonl"), "--format", name])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.output.startswith(f"wrote {number} episodes")
    assert peak < 2_000_000


def test_rows_are_read_one_by_one(tmp_path: Path) -> None:
    row = {"input": "x" * 20_000, "output": "2", "gts": "2", "score": 1.0, "step": 1}
    (tmp_path / "1.jsonl").write_text(f"{json.dumps(row)}\n" * 300)
    (tmp_path / "log.json").write_text(json.dumps(LOG | {"samples": [SAMPLE | {"input": "x" * 20_000}] * 300}))
    for name, maximum in (("1.jsonl", 1_000_000), ("log.json", 14_000_000)):
        tracemalloc.start()
        count = sum(1 for _ in stream_file(tmp_path / name))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (count, peak < maximum) == (300, True), peak


LOG = {"version": 2, "status": "success", "eval": {"task": "sum"}}
SAMPLE = {"id": 1, "messages": [{"role": "assistant", "content": "2"}]}


def test_one_json_file_contains_one_episode(tmp_path: Path) -> None:
    with expect_error(FormatError, "wrong-file-type", "several.jsonl"):
        write(tmp_path / "several.json", "atif", {"a": [1.0, 0.0]})
    assert len(read_file(write(tmp_path / "one.json", "atif", {"a": [1.0]}))) == 1


def test_unknown_files_and_formats_are_errors(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"a": 1}')
    with expect_error(FormatError, "unknown-file-type", "atif"):
        read_file(tmp_path / "other.json")
    (tmp_path / "empty.jsonl").touch()
    with expect_error(FormatError, "unknown-file-type", "because it is empty"):
        read_file(tmp_path / "empty.jsonl")
    with expect_error(FormatError, "unknown-choice", "atif, verifiers"):
        write_file(tmp_path / "one.json", [], "nothing")


def test_damaged_lines_are_errors_with_their_number(tmp_path: Path) -> None:
    file = write(tmp_path / "file.jsonl", "atif", {"a": [1.0]})
    (tmp_path / "file.jsonl.gz").write_bytes(gzip.compress(file.read_bytes())[:-9])
    with expect_error(FormatError, "file-unreadable", "EOFError"):
        read_file(tmp_path / "file.jsonl.gz")
    with file.open("a") as opened:
        opened.write("{\n")
    with expect_error(FormatError, "file-unreadable", "line 2"):
        read_file(file)
    file.write_text(json.dumps({"schema_version": "ATIF-v1.8", "steps": [{}]}))
    with expect_error(FormatError, "file-unreadable", "atif"):
        read_file(file)


def test_line_that_is_still_written_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "file.jsonl", "verifiers", {"a": [1.0, 0.0]})
    file.write_bytes(file.read_bytes()[:-9])
    assert [each.episode.id for each in read_file(file)] == ["a:0"]
    assert f"{file}: the last line, 2, is cut off" in capsys.readouterr().err


def test_other_zip_file_is_no_log(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "other.eval", "w") as archive:
        archive.writestr("a.txt", "")
    assert format_of(tmp_path / "other.eval") is None


EXAMPLE = (Path(__file__).parents[4] / "docs/how-to/interchange.md").read_text(encoding="utf-8")


def test_packages_add_formats(tmp_path: Path, monkeypatch: Any) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", EXAMPLE, re.DOTALL)
    (points,) = re.findall(r"```toml\n.*?\n(.*?)```", EXAMPLE, re.DOTALL)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "mine.py").write_text(code)
    write_distribution(tmp_path, "my-formats", "", points=f"[{GROUP}]\n{points.replace(chr(34), '')}")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "file.jsonl").write_text('{"my_question": "1+1", "my_answer": "2", "score": 1}\n')

    (episode,) = read_file(tmp_path / "file.jsonl")

    assert (episode.episode.id, episode.trajectories[0].reward_given) == ("question:0", 1)
    assert episode.trajectories[0].trajectory.steps[0].text == "2"
    monkeypatch.setenv(BLOCK_VARIABLE, "my-formats")
    episode_formats.cache_clear()
    assert format_of(tmp_path / "file.jsonl") is None
