"""Rewards by name, and rollouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rllm.builtin.tasks import plugin
from rllm_core.contracts.reward import RewardPlugin, Rollout
from rllm_core.data.messages import Response

MakeRollout = Callable[..., Rollout]


@pytest.fixture(scope="session")
def rewards() -> dict[str, RewardPlugin[Any]]:
    return {record.name: record for record in plugin.rllm_rewards()}


@pytest.fixture
def make(rewards: dict[str, RewardPlugin[Any]]) -> Callable[..., Any]:
    """A reward by name, with options."""

    def made(name: str, **options: Any) -> Any:
        record = rewards[name]
        return record.load()(record.params(**options))

    return made


@pytest.fixture
def rollout() -> Iterator[MakeRollout]:
    """A rollout with this response at a task with these columns."""

    def made(said: str, tokens: int = 1, **data: Any) -> Rollout:
        response = Response(text=said, content=said)
        asked = {"role": "user", "content": str(data.get("question", "?"))}
        return Rollout(data=data, messages=[asked, response.message], response=response, response_tokens=tokens)

    return made
