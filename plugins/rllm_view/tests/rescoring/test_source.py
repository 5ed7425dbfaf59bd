"""Places of episodes, and their runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from expecting import expect_error

from rllm_core.data.codec import episode_to_json
from rllm_core.errors import ConfigError
from rllm_view.rescoring.source import EpisodesError, find_episodes, read_batches, read_stored_config


def test_directories_and_files_lead_to_the_run(run: Path, keep: Callable[..., Path]) -> None:
    files = [keep(step, {"t": [1.0]}) for step in (10, 2)]
    assert find_episodes(run).files == ((2, files[1]), (10, files[0]))
    assert find_episodes(run / "record" / "episodes").files == ((2, files[1]), (10, files[0]))
    assert find_episodes(files[0]).files == ((10, files[0]),)
    assert {find_episodes(path).run_directory for path in (run, files[0].parent, files[0])} == {run}


def test_episodes_without_a_run_have_no_run(tmp_path: Path, keep: Callable[..., Path]) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(keep(3, {"t": [1.0]}), other / "mine.parquet")
    found = find_episodes(other / "mine.parquet")
    assert found.run_directory is None
    assert [step for step, _ in found.files] == [0]


def test_paths_without_episodes_are_errors(run: Path, keep: Callable[..., Path]) -> None:
    with expect_error(EpisodesError, "no-episodes", "rllm.record=tokens"):
        find_episodes(run)
    keep(0, {"t": [1.0]})
    with expect_error(EpisodesError, "no-episodes"):
        find_episodes(run.parent)
    with expect_error(EpisodesError, "file-not-found"):
        find_episodes(run / "typo")


def test_config_of_a_different_version_shows_its_keys(run: Path, configure: Callable[..., None]) -> None:
    configure({"rllm": {"algorithm": {"adv_estimtor": "grpo"}}, "model": {"name": "what a backend wants"}})
    with expect_error(ConfigError, "unknown-key", "adv_estimtor"):
        read_stored_config(run)


def test_record_without_tokens_has_no_episodes(run: Path, keep: Callable[..., Path]) -> None:
    file = keep(0, {"t": [1.0]}, content="outcomes")
    with expect_error(EpisodesError, "no-episodes", "rllm.record"):
        find_episodes(run)
    with expect_error(EpisodesError, "record-without-tokens"):
        read_batches(file)


def test_episodes_are_read_by_rollout_batch(keep: Callable[..., Path], episodes: Callable[..., Any]) -> None:
    file = keep(0, {"t": [0.0, 1.0]}, {"t": [0.5]})
    expected = [[episode_to_json(each) for each in episodes({"t": rewards})] for rewards in ([0.0, 1.0], [0.5])]
    assert [[episode_to_json(each) for each in batch] for batch in read_batches(file)] == expected
    file.write_bytes(file.read_bytes()[:-10])
    with expect_error(EpisodesError, "file-unreadable", "step_000000.parquet"):
        read_batches(file)
