"""Six tasksets of verifiers get the rewards of `vf-eval`, and their tokens are in the batch once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rllm_core.data.types import Episode

from .bridge import Engine, episodes
from .reference import evaluate
from .script import endpoint, say_to_prompt

JUDGE = {"id": "reference", "model": "judge", "api_key_var": "NO_KEY"}
KINDS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "one turn": (("agent",), {"id": "vf_adds", "config": {"taskset": {"first": 3}}}),
    "tools": (("agent",), {"id": "vf_tools"}),
    "simulated user": (("assistant", "user"), {"id": "vf_errands", "env": "user-sim"}),
    "best of n": (("agent",), {"id": "vf_adds", "env": "best-of-n", "config": {"n": 2, "taskset": {"first": 3}}}),
    "judge": (("agent",), {"id": "vf_judged"}),
    "two seats": (("writer", "solver"), {"id": "vf_duel"}),
}
NEVER_TRAINED = {"user"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with endpoint() as url:
        yield url


@pytest.mark.parametrize("kind", KINDS)
def test_rewards_and_metrics_equal_those_of_vf_eval(
    kind: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_KEY", "none")
    seats, options = KINDS[kind]
    if kind == "judge":
        options = {**options, "config": {"taskset": {"task": {"judges": [{**JUDGE, "base_url": url}]}}}}
    theirs = evaluate(tmp_path, url, seats, **options)
    ours, engine = episodes(say_to_prompt, **options)
    assert all(episode.ok for episode in theirs)
    assert [_rewards(episode) for episode in ours] == [
        [(trace.agent.name, trace.reward) for trace in episode.traces if trace.agent.trainable] for episode in theirs
    ]
    assert len({reward for episode in ours for _, reward in _rewards(episode)}) > 1
    _assert_trained_tokens_are_sampled_once(ours, engine)


def _rewards(episode: Episode) -> list[tuple[str, float | None]]:
    return [(trajectory.name, trajectory.reward) for trajectory in episode.trajectories]


def _assert_trained_tokens_are_sampled_once(ours: Sequence[Episode], engine: Engine) -> None:
    """Each call of a trained seat is one step, token for token, and no call of another seat is one."""
    steps = Counter(
        (tuple(step.prompt_ids.tolist()), tuple(step.response_ids.tolist()))
        for episode in ours
        for trajectory in episode.trajectories
        for step in trajectory.steps
    )
    calls = [(tuple(prompt), tuple(response)) for prompt, response in engine.calls]
    trained = [call for call in calls if "role-playing a USER" not in "".join(map(chr, call[0]))]
    assert steps == Counter(trained)
    metrics = [episode.metrics for episode in ours]
    assert sum(each["gateway/sampled_tokens"] for each in metrics) == sum(len(response) for _, response in calls)
    assert sum(each["gateway/trained_tokens"] for each in metrics) == sum(len(response) for _, response in trained)
