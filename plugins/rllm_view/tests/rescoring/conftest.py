"""Episodes on disk, and what a rescoring makes of them, with the core's plugins alone."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rllm_core.contracts.estimator import AdvantageInput, Advantages, EstimatorPlugin
from rllm_core.contracts.plugin import NoParams
from rllm_core.data.codec import episode_to_json
from rllm_core.data.types import Episode, TerminationReason, Trajectory
from rllm_core.plugins.registry import Registry
from rllm_view.rescoring.rescore import Request, Rescored, rescore
from rllm_view.rescoring.scores import Member, ScoredGroup

Rewards = Mapping[str, Sequence[float | None]]


def episodes_of(
    rewards: Rewards,
    *,
    lengths: Mapping[str, Sequence[int]] | None = None,
    turns: int = 1,
    advantage: float | None = None,
    greedy: Mapping[str, float] | None = None,
    roles: Sequence[str] = ("agent",),
    reason: TerminationReason = TerminationReason.ENV_DONE,
    logprobs_known: bool = True,
) -> list[Episode]:
    """Attempts at each task with these rewards; every role of an attempt has the same."""
    episodes = []
    for task, values in rewards.items():
        for index, reward in enumerate(values):
            said = lengths[task][index] if lengths else 2
            trajectories = []
            for role in roles:
                trajectory = Trajectory(role, reward=reward, uid=f"{task}:{index}/{role}")
                if task in (greedy or {}):
                    trajectory.info["greedy_reward"] = greedy[task]
                logprobs = np.linspace(-1.0, -0.5, said) if logprobs_known else None
                for turn in range(turns):
                    trajectory.add_step([1, 2, turn], [3] * said, logprobs, advantage=advantage)
                trajectories.append(trajectory)
            episodes.append(
                Episode(
                    id=f"{task}:{index}",
                    trajectories=trajectories,
                    is_correct=bool(reward),
                    termination_reason=reason,
                )
            )
    return episodes


def lines_of(episodes: Sequence[Episode], number: int) -> bytes:
    """As a run logs them: the attempts of one round."""
    lines = (json.dumps(episode_to_json(episode) | {"round": number}) for episode in episodes)
    return b"".join(line.encode() + b"\n" for line in lines)


@pytest.fixture
def episodes() -> Callable[..., list[Episode]]:
    return episodes_of


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run that has begun; a configuration may be given by `configure`."""
    folder = tmp_path / "run"
    (folder / "episodes").mkdir(parents=True)
    (folder / "config.yaml").write_text("rllm: {algorithm: {adv_estimator: grpo}}\n")
    return folder


@pytest.fixture
def configure(run: Path) -> Callable[[dict[str, Any]], None]:
    """What the run was configured with, as a tree; JSON is YAML."""
    return lambda tree: (run / "config.yaml").write_text(json.dumps(tree)) and None


@pytest.fixture
def keep(run: Path) -> Callable[..., Path]:
    """Write a step's episodes, round by round, as a run does, and return the file."""

    def keep(step: int, *rounds: Rewards, **options: Any) -> Path:
        file = run / "episodes" / f"step_{step:06d}.jsonl.gz"
        lines = [lines_of(episodes_of(rewards, **options), number) for number, rewards in enumerate(rounds)]
        file.write_bytes(gzip.compress(b"".join(lines)))
        return file

    return keep


@pytest.fixture
def registry() -> Registry:
    """The core's own plugins, and `stranger`: an estimator that nobody knows anything about."""
    registry = Registry.load(allow=[], environ={})
    registry.add(EstimatorPlugin(name="stranger", summary="A half of the reward.", params=NoParams, load=lambda: _half))
    return registry


def _half(inputs: AdvantageInput, params: NoParams) -> Advantages:
    return Advantages(values=0.5 * inputs.rewards)


@pytest.fixture
def rescored(run: Path, registry: Registry) -> Callable[..., Rescored]:
    """Rescore the run; keywords are those of a request."""

    def make(**request: Any) -> Rescored:
        return asyncio.run(rescore(Request(**{"path": run, **request}), registry))

    return make


@pytest.fixture
def group() -> Callable[..., ScoredGroup]:
    """A group with these rewards and, for each setup, these advantages."""

    def make(
        rewards: Sequence[float], *advantages: Sequence[float], step: int = 0, name: str = "t:agent", **changes: Any
    ) -> ScoredGroup:
        values = np.array(advantages, np.float64).reshape(len(advantages), len(rewards))
        fields: dict[str, Any] = {
            "lengths": np.full(len(rewards), 4),
            "signal": (values != 0).any(axis=1),
        }
        return ScoredGroup(
            step=step,
            group_id=name,
            role="agent",
            members=tuple(Member(episode=f"t:{index}", uid="") for index in range(len(rewards))),
            rewards=np.array(rewards, np.float64),
            advantages=values,
            **{**fields, **changes},
        )

    return make
