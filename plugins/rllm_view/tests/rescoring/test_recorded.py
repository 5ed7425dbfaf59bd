"""Episodes of a record are found and read as those of a log are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from expecting import expect_error

from rllm_core.data.codec import episode_to_json
from rllm_record.steps import PlayedEpisode, PlayedTrajectory, StepFiles
from rllm_view.rescoring.source import EpisodesError, find_episodes, read_file


@pytest.fixture
def record(run: Path, episodes: Callable[..., Any]) -> Callable[..., Path]:
    """Records a step of the run in two rounds; returns the file of its episodes."""

    def write(step: int, content: Literal["fates", "tokens"] = "tokens") -> Path:
        played = [
            PlayedEpisode(
                uid=f"{step}.{number}:{episode.id}",
                step=step,
                round=number,
                episode=episode,
                trajectories=tuple(
                    PlayedTrajectory(uid=f"{place}", trajectory=each, reward_given=each.reward, reward_used=each.reward)
                    for place, each in enumerate(episode.trajectories)
                ),
            )
            for number in range(2)
            for episode in episodes({"t": [0.0, 1.0]})
        ]
        StepFiles(run / "record").write(step, played, [], content)
        return run / "record" / "episodes" / f"step_{step:06d}.parquet"

    return write


def test_a_record_with_tokens_comes_before_a_log(
    run: Path, keep: Callable[..., Path], record: Callable[..., Path]
) -> None:
    keep(3, {"t": [1.0]})
    files = [record(step) for step in (10, 2)]

    assert find_episodes(run).files == ((2, files[1]), (10, files[0]))
    assert {find_episodes(path).run_folder for path in (run, files[0].parent, files[0])} == {run}


def test_a_record_of_fates_is_passed_over(run: Path, keep: Callable[..., Path], record: Callable[..., Path]) -> None:
    log = keep(3, {"t": [1.0]})
    record(3, "fates")

    assert find_episodes(run).files == ((3, log),)


def test_a_run_that_recorded_fates_alone_says_how_to_keep_episodes(run: Path, record: Callable[..., Path]) -> None:
    file = record(0, "fates")

    with expect_error(EpisodesError, "no-episodes", "rllm.record"):
        find_episodes(run)
    with expect_error(EpisodesError, "record-without-tokens"):
        read_file(file)


def test_episodes_come_back_by_the_round_they_were_played_in(
    record: Callable[..., Path], episodes: Callable[..., Any]
) -> None:
    read = read_file(record(0))

    played = [episode_to_json(each) for each in episodes({"t": [0.0, 1.0]})]
    assert [[episode_to_json(each) for each in those] for those in read.rounds] == [played, played]
    assert read.skipped == 0


def test_a_damaged_record_is_named(record: Callable[..., Path]) -> None:
    file = record(0)
    file.write_bytes(file.read_bytes()[:-10])

    with expect_error(EpisodesError, "file-unreadable", "step_000000.parquet"):
        read_file(file)
