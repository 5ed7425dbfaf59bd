"""Which weights sampled which tokens, told from the times at which vLLM's engine process made them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rllm_vllm.server import TokenVersions, count_tokens


class Clock:
    """Shows what it is set to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def versions(clock: Clock) -> TokenVersions:
    """Weights of version 3 from 10 s on, of version 4 from 20 s on; the request `a` is counted."""
    versions = TokenVersions(clock)
    for clock.now, version in ((10.0, 3), (20.0, 4)):
        versions.change(version)
    versions.begin("a")
    return versions


def test_tokens_are_of_the_weights_of_their_time(versions: TokenVersions) -> None:
    versions.count("a", 2, made=18.0)
    versions.count("a", 1, made=19.9)
    versions.count("a", 3, made=20.1)
    assert versions.end("a") == ((3, 3), (4, 3))


def test_tokens_delivered_after_change_have_old_version(versions: TokenVersions, clock: Clock) -> None:
    clock.now = 30.0
    versions.count("a", 1, made=15.0)
    assert versions.end("a") == ((3, 1),)


def test_request_queued_during_change_has_only_new_version(versions: TokenVersions) -> None:
    versions.count("a", 0, made=12.0)
    versions.count("a", 5, made=21.0)
    assert versions.end("a") == ((4, 5),)


def test_requests_that_have_ended_are_forgotten(versions: TokenVersions) -> None:
    versions.end("a")
    versions.count("a", 1, made=21.0)
    versions.begin("a")
    assert versions.end("a") == ()


def test_all_vllm_outputs_are_counted_by_request_id(versions: TokenVersions) -> None:
    handled: list[Any] = []
    processor = SimpleNamespace(
        request_states={"a-77f1": SimpleNamespace(external_req_id="a")},
        process_outputs=lambda outputs, made, stats: handled.append((outputs, made, stats)),
    )
    count_tokens(processor, versions)
    outputs = [
        SimpleNamespace(request_id="a-77f1", new_token_ids=[5, 6]),
        SimpleNamespace(request_id="gone-1", new_token_ids=[7]),
    ]
    processor.process_outputs(outputs, 11.0, None)
    assert handled == [(outputs, 11.0, None)]
    assert versions.end("a") == ((3, 2),)
