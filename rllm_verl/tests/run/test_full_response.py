"""Responses that servers cut off: the next request, and which weights sampled which token."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from expecting import expect_error

from rllm_core.errors import BackendError, RolloutError
from rllm_verl.rollouts import FullResponse, sample_full_response

PROMPT = [10, 11]
ASKED = {"max_tokens": 6, "seed": 7, "temperature": 0.5}


@dataclass
class Part:
    """As verl's `TokenOutput`."""

    token_ids: list[int]
    version: int | None = 0
    stop_reason: str = "aborted"
    has_log_probs: bool = True

    @property
    def log_probs(self) -> list[float] | None:
        return [-float(token) for token in self.token_ids] if self.has_log_probs else None

    @property
    def extra_fields(self) -> Mapping[str, Any]:
        return {"global_steps": self.version}


@dataclass
class Server:
    """Answers with these parts, in order."""

    parts: list[Part]
    asked: list[tuple[list[int], Mapping[str, Any]]] = field(default_factory=list)

    async def __call__(self, prompt: list[int], sampling: Mapping[str, Any]) -> Part:
        self.asked.append((prompt, sampling))
        return self.parts[len(self.asked) - 1]

    def sample(self) -> FullResponse:
        return asyncio.run(sample_full_response(self, PROMPT, ASKED))


def test_an_interrupted_response_continues_from_its_tokens() -> None:
    server = Server([Part([1, 2], 3), Part([4], 4), Part([5, 6], 5, "completed")])
    response = server.sample()
    assert response.token_ids == [1, 2, 4, 5, 6]
    assert response.log_probs == [-1, -2, -4, -5, -6]
    assert response.spans == [(3, 2), (4, 1), (5, 2)]
    assert [prompt for prompt, _ in server.asked] == [PROMPT, [*PROMPT, 1, 2], [*PROMPT, 1, 2, 4]]
    assert [sampling["max_tokens"] for _, sampling in server.asked] == [6, 4, 3]
    assert {sampling["temperature"] for _, sampling in server.asked} == {0.5}


def test_each_part_has_own_reproducible_seed() -> None:
    """Seeded as the beginning, the rest would be drawn by the numbers that drew the beginning."""
    parts = [Part([1, 2]), Part([4]), Part([5], stop_reason="completed")]
    once, again = Server(parts), Server(parts)
    once.sample()
    again.sample()
    seeds = [sampling["seed"] for _, sampling in once.asked]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
    assert seeds == [sampling["seed"] for _, sampling in again.asked]


def test_response_interrupted_before_first_token_has_new_version() -> None:
    response = Server([Part([], 3), Part([4], 4, "completed")]).sample()
    assert response.spans == [(4, 1)]


def test_parts_of_one_version_are_one_span() -> None:
    assert Server([Part([1], 3), Part([2, 4], 3, "completed")]).sample().spans == [(3, 3)]


def test_response_interrupted_at_last_token_is_complete() -> None:
    server = Server([Part([1, 2, 3, 4, 5, 6])])
    assert server.sample().token_ids == [1, 2, 3, 4, 5, 6]
    assert len(server.asked) == 1


def test_response_without_a_token_is_a_rollout_error() -> None:
    with expect_error(RolloutError, "empty-response", "token"):
        Server([Part([], stop_reason="completed")]).sample()


def test_a_rest_without_log_probs_is_refused() -> None:
    with pytest.raises(BackendError, match=r"calculate_log_probs=true"):
        Server([Part([1]), Part([2], has_log_probs=False, stop_reason="completed")]).sample()
