"""`rllm view` of a file of episodes."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner
from expecting import expect_error
from opening import open_file
from recorded_episodes import episodes_of, record_rollouts

from rllm_record.interchange.formats import FormatError, write_file
from rllm_view.commands import view
from rllm_view.episode_files import as_runs

from .asking import Asking


def test_steps_of_a_file_are_shown(tmp_path: Path) -> None:
    first = record_rollouts(0, 0, episodes_of({"a": [1.0, 0.0]}))
    file = tmp_path / "file.jsonl"
    write_file(file, [*first, *record_rollouts(1, 0, episodes_of({"b": [0.5]}))], "atif")
    assert [each.reward for each in open_file(file)] == [1.0, 0.0, 0.5]
    with as_runs([file]) as places:
        ask = Asking(*places)
        (run,) = ask("runs")["runs"]
        assert (run["steps"], run["recorded_steps"], run["reward"]) == (2, 2, 0.5)
        ask.library.close()


def test_messages_without_a_response_are_shown(tmp_path: Path) -> None:
    row = {"input": "1+1", "output": [CALL, {"role": "tool", "content": "2"}], "gts": "2", "score": 0.0, "step": 1}
    (tmp_path / "1.jsonl").write_text(json.dumps(row))
    (shown,) = open_file(tmp_path / "1.jsonl")
    assert (shown.prompts, shown.responses) == ([[("user", "1+1")], [("tool", "2")]], ["add", ""])


CALL = {"role": "assistant", "content": "add"}


def test_command_writes_a_page_of_a_file(tmp_path: Path) -> None:
    file, page = tmp_path / "file.jsonl", tmp_path / "page.html"
    write_file(file, record_rollouts(0, 0, episodes_of({"a": [1.0]})), "verifiers")
    result = CliRunner().invoke(view, [str(file), "--static", str(page)], catch_exceptions=False)
    assert result.output == f"wrote {page}\n"
    assert page.stat().st_size > 10_000
    (tmp_path / "other.txt").write_text("x")
    with expect_error(FormatError, "unknown-file-type", "other.txt"), as_runs([tmp_path / "other.txt"]):
        pass
