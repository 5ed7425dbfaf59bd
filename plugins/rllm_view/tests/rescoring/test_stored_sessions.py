"""Episodes of sessions under rewards."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from expecting import expect_error

from rllm_core.contracts.reward import Rollout
from rllm_core.data.messages import Response
from rllm_core.data.types import Episode
from rllm_core.errors import ConfigError
from rllm_record.steps import PlayedEpisode, PlayedTrajectory, Sampler, StepFiles
from rllm_record.steps.files import sampler_of
from rllm_view.rescoring.command import rescore

FISH = "def score(rollout):\n    return {'value': 0.5 * (rollout.response.content == rollout.data['answer'])}\n"


@pytest.fixture
def stored(tmp_path: Path, episodes: Callable[..., list[Episode]]) -> Path:
    """Three attempts at one task: a right reply, a wrong one, and a right one that the user liked."""
    folder = tmp_path / "sessions"
    played = []
    for episode, content, given in zip(
        episodes({"a": [None, None, 1.0]}), ("fish", "cat", "fish"), (None, None, 1.0), strict=True
    ):
        reply = Response(text=content, content=content)
        said = [{"role": "user", "content": "?"}, reply.message]
        rollout = Rollout(data={"answer": "fish"}, messages=said, response=reply, response_tokens=2)
        (trajectory,) = episode.trajectories
        trajectory.steps[-1].info["attempt"] = asdict(rollout)
        member = PlayedTrajectory(uid="x", trajectory=trajectory, reward_given=given, reward_used=None)
        played.append(PlayedEpisode(uid=f"0.0:{episode.id}", step=0, round=0, episode=episode, trajectories=(member,)))
    StepFiles(folder).write(0, played, (), "tokens", Sampler(temperature=0.5))
    (tmp_path / "rewards.py").write_text(FISH)
    return folder


def command(*words: object) -> str:
    result = CliRunner().invoke(rescore, [*map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def rewards_in(folder: Path) -> list[float | None]:
    return [each.episode.trajectories[0].reward for each in StepFiles(folder).episodes(0)]


def test_a_score_is_added_to_what_the_agent_said(stored: Path, tmp_path: Path) -> None:
    command(stored, "--reward", f"{tmp_path}/rewards.py:score", "--save", tmp_path / "scored")
    assert rewards_in(stored) == [None, None, 1.0]
    assert rewards_in(tmp_path / "scored") == [0.5, 0.0, 1.5]
    episodes = [each.episode for each in StepFiles(tmp_path / "scored").episodes(0)]
    assert [episode.is_correct for episode in episodes] == [True, False, True]
    assert sampler_of(tmp_path / "scored" / "episodes" / "step_000000.parquet").temperature == 0.5


def test_scored_sessions_are_scored_anew_from_what_the_agent_said(stored: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    command(stored, "--reward", f"{tmp_path}/rewards.py:score", "--save", first)
    command(first, "--reward", f"{tmp_path}/rewards.py:score", "--save", second)
    assert rewards_in(second) == rewards_in(first)


def test_figures_before_and_after_are_shown(stored: Path, tmp_path: Path) -> None:
    said = command(stored, "--reward", f"{tmp_path}/rewards.py:score", "--json")
    (figures,) = json.loads(said)["environments"]
    assert (figures["stored"][0]["missing_rewards"], figures["now"][0]["missing_rewards"]) == (2, 0)


def test_a_reward_that_fails_is_missing(stored: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def score(rollout):\n    raise LookupError('gone')\n")
    command(stored, "--reward", f"{tmp_path}/broken.py:score", "--save", tmp_path / "scored")
    (first, *_) = StepFiles(tmp_path / "scored").episodes(0)
    trajectory = first.episode.trajectories[0]
    assert trajectory.reward is None
    assert "LookupError" in trajectory.info["reward_error"]


def test_what_was_stored_without_a_conversation_is_refused(tmp_path: Path, episodes: Any) -> None:
    (episode,) = episodes({"a": [1.0]})
    (trajectory,) = episode.trajectories
    member = PlayedTrajectory(uid="x", trajectory=trajectory, reward_given=1.0, reward_used=None)
    played = PlayedEpisode(uid="0.0:a:0", step=0, round=0, episode=episode, trajectories=(member,))
    StepFiles(tmp_path / "record").write(0, [played], (), "tokens")
    with expect_error(ConfigError, "no-stored-rollout"):
        command(tmp_path, "--reward", "exact")


def test_a_folder_that_holds_files_is_not_written_to(stored: Path, tmp_path: Path) -> None:
    with expect_error(ConfigError, "directory-in-use"):
        command(stored, "--reward", "exact", "--save", tmp_path)
