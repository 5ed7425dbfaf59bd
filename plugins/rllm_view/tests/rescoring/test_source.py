"""Where episodes are looked for, and whose they are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from expecting import expect_error

from rllm_core.errors import ConfigError
from rllm_view.rescoring.source import EpisodesError, find_episodes


def test_a_run_folder_its_episodes_folder_and_one_file_lead_to_the_run(run: Path, keep: Callable[..., Path]) -> None:
    files = [keep(step, {"t": [1.0]}) for step in (10, 2)]
    assert find_episodes(run).files == ((2, files[1]), (10, files[0]))
    assert find_episodes(run / "episodes").files == ((2, files[1]), (10, files[0]))
    assert find_episodes(files[0]).files == ((10, files[0]),)
    assert {find_episodes(path).run_folder for path in (run, run / "episodes", files[0])} == {run}


def test_episodes_logged_elsewhere_are_found_from_both_sides(
    run: Path, keep: Callable[..., Path], configure: Callable[..., None], tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move(keep(0, {"t": [1.0]}), elsewhere)
    configure({"rllm": {"episode_logging": {"log_episodes": True, "episode_log_dir": str(elsewhere)}}})
    (elsewhere / "run.json").write_text(json.dumps({"run_folder": str(run)}))
    assert find_episodes(run).files == ((0, elsewhere / "step_000000.jsonl.gz"),)
    assert find_episodes(elsewhere).run_folder == run


def test_episodes_without_a_run_have_no_run(tmp_path: Path, keep: Callable[..., Path]) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(keep(3, {"t": [1.0]}), alone / "mine.jsonl.gz")
    found = find_episodes(alone / "mine.jsonl.gz")
    assert found.run_folder is None
    assert [step for step, _ in found.files] == [0]


def test_a_run_that_kept_none_says_how_to_keep_them(run: Path) -> None:
    with expect_error(EpisodesError, "no-episodes", "log_episodes"):
        find_episodes(run)


def test_a_folder_of_runs_names_them(run: Path, keep: Callable[..., Path]) -> None:
    keep(0, {"t": [1.0]})
    with expect_error(EpisodesError, "no-episodes"):
        find_episodes(run.parent)


def test_nothing_there_is_said(tmp_path: Path) -> None:
    with expect_error(EpisodesError, "file-not-found"):
        find_episodes(tmp_path / "typo")


def test_a_marker_that_cannot_be_read_is_named(run: Path, keep: Callable[..., Path]) -> None:
    keep(0, {"t": [1.0]})
    (run / "episodes" / "run.json").write_text("[]")
    with expect_error(EpisodesError, "file-unreadable", "run.json"):
        find_episodes(run)


def test_a_run_of_another_version_is_told_by_its_keys(
    run: Path, keep: Callable[..., Path], configure: Callable[..., None]
) -> None:
    keep(0, {"t": [1.0]})
    configure({"rllm": {"algorithm": {"adv_estimtor": "grpo"}}, "model": {"name": "what a backend wants"}})
    with expect_error(ConfigError, "unknown-key", "adv_estimtor"):
        find_episodes(run)
