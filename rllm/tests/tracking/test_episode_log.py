"""Episodes on disk: one file per step, none of a step that is made again."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from expecting import expect_error

from rllm.runs.episode_log import EpisodeLog
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.codec import episode_from_json
from rllm_core.data.types import Episode, Trajectory
from rllm_core.errors import RllmError


def _step(global_step: int) -> TrainStep:
    episodes = [Episode(id=f"task:{index}", trajectories=[Trajectory("agent", reward=1.0)]) for index in range(2)]
    return TrainStep(global_step=global_step, epoch=0, total_steps=4, tasks=[], generated=episodes)


def test_a_step_s_episodes_are_read_with_their_batch(tmp_path: Path) -> None:
    directory = tmp_path / "not" / "there" / "yet"
    step, second = _step(3), _step(3)
    del second.generated[1:]
    step.take_rollout_batch(second)
    EpisodeLog(directory).on_batch_end(step)
    with gzip.open(directory / "step_000003.jsonl.gz", "rt") as lines:
        read = [json.loads(line) for line in lines]
    assert [(line["id"], line["batch"]) for line in read] == [("task:0", 0), ("task:1", 0), ("task:0", 1)]
    assert [episode_from_json(line).id for line in read] == ["task:0", "task:1", "task:0"]


@pytest.mark.parametrize("first_step", [0, 2, 4])
def test_episodes_of_steps_that_are_made_again_are_dropped(tmp_path: Path, first_step: int) -> None:
    for step in range(4):
        EpisodeLog(tmp_path).on_batch_end(_step(step))
    (tmp_path / "step_notes.txt").touch()
    (tmp_path / "step_x.jsonl.gz").touch()
    EpisodeLog(tmp_path).on_train_start(4, first_step)
    kept = {f"step_{step:06d}.jsonl.gz" for step in range(first_step)}
    assert {file.name for file in tmp_path.iterdir()} == {*kept, "step_notes.txt", "step_x.jsonl.gz"}


# In a directory outside the run directory


def _logged(directory: Path, run: Path, steps: range, first_step: int = 0) -> list[str]:
    """What is in the directory after a run of these steps."""
    log = EpisodeLog(directory, run)
    log.on_train_start(4, first_step)
    for step in steps:
        log.on_batch_end(_step(step))
    return sorted(file.name for file in directory.iterdir())


def test_a_run_finds_its_own_episodes_again_by_the_marker(tmp_path: Path) -> None:
    directory, run = tmp_path / "episodes", tmp_path / "runs" / "p" / "e"
    assert len(_logged(directory, run, range(3))) == 4
    assert json.loads((directory / "run.json").read_text()) == {"run_directory": str(run)}
    kept = ["run.json", "step_000000.jsonl.gz", "step_000001.jsonl.gz"]
    assert _logged(directory, run, range(0), first_step=2) == kept
    assert _logged(directory, run, range(0)) == ["run.json"], "a run that replaces itself"


@pytest.mark.parametrize("marked", [True, False], ids=["another run's marker", "no marker"])
def test_episodes_of_another_run_stay_unchanged(tmp_path: Path, marked: bool) -> None:
    directory, other = tmp_path / "episodes", tmp_path / "runs" / "p" / "other"
    _logged(directory, other, range(3))
    if not marked:
        (directory / "run.json").unlink()
    before = {file: file.read_bytes() for file in directory.iterdir()}
    whose = f"the run in {other}" if marked else "another run"
    values = (directory, whose, "rllm.episode_logging.episode_log_dir=DIRECTORY")
    with expect_error(RllmError, "directory-in-use", *values):
        EpisodeLog(directory, tmp_path / "runs" / "p" / "e")
    assert {file: file.read_bytes() for file in directory.iterdir()} == before


def test_earlier_run_keeps_the_directory(tmp_path: Path) -> None:
    directory = tmp_path / "episodes"
    late = EpisodeLog(directory, tmp_path / "late")
    _logged(directory, tmp_path / "early", range(1))
    with expect_error(RllmError, "directory-in-use"):
        late.on_train_start(4, 0)
    assert (directory / "step_000000.jsonl.gz").exists()


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_marker_that_says_nothing_is_no_permission(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(RllmError, match="episodes"):
        EpisodeLog(tmp_path, tmp_path / "run")


def test_other_files_in_the_directory_are_no_obstacle(tmp_path: Path) -> None:
    for name in ("step_x.jsonl.gz", "notes.txt"):
        (tmp_path / name).touch()
    expected = ["notes.txt", "run.json", "step_000000.jsonl.gz", "step_x.jsonl.gz"]
    assert _logged(tmp_path, tmp_path / "run", range(1)) == expected
