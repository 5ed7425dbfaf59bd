"""Traces become trajectories: which tokens are in which row, which rewards they get, and agents without calls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest

from rllm_core.algorithms.columns import REWARD_ERROR
from rllm_core.data.types import Episode, Step, Trajectory
from rllm_core.errors import RolloutError
from rllm_core.notices import forget_warnings
from rllm_gateway.running.episodes import AgentResult, SessionTrajectories, assign_rewards, make_trajectories
from rllm_gateway.running.workflow import NO_CALL, NoCallWarning
from rllm_gateway.sessions.link import SessionTrace, TracedCall


class Session:
    """A trace in progress. `call` adds a call that continues an earlier one, with its own tokens."""

    def __init__(self) -> None:
        self.calls: list[TracedCall] = []
        self.sampled: dict[str, Step] = {}

    def call(self, id: str, said: Sequence[int], parent: str | None = None, **fields: Any) -> None:
        before = [] if parent is None else [*self.sampled[parent].prompt_ids, *self.sampled[parent].response_ids]
        self.sampled[id] = Step([*before, *said], [100 + len(self.sampled), 1], [-0.5, -0.5])
        given = {"role": "agent", "name": None, "group": None, "delivered": True} | fields
        self.calls.append(TracedCall(id=id, parent=parent, **given))

    def make_trajectories(
        self, order: Sequence[int] | None = None, others: tuple[int, int] = (0, 0)
    ) -> SessionTrajectories:
        calls = self.calls if order is None else [self.calls[place] for place in order]
        trace = SessionTrace(id="s", calls=tuple(calls), rewards={}, counters={"branches": 2}, ending="closed")
        return make_trajectories(trace, self.sampled, "t:0", *others)


@pytest.fixture
def session() -> Session:
    return Session()


def rows(result: SessionTrajectories) -> int:
    return sum(len(trajectory.tokens.segment_starts) for trajectory in result.trajectories)


def test_a_conversation_is_one_row(session: Session) -> None:
    session.call("a", [5])
    session.call("b", [6], "a")
    session.call("c", [7], "b")
    (trajectory,) = session.make_trajectories().trajectories
    assert (trajectory.name, trajectory.uid) == ("agent", "t:0/agent")
    assert trajectory.tokens.ids.tolist() == [5, 100, 1, 6, 101, 1, 7, 102, 1]
    assert trajectory.tokens.sampled.tolist() == [False, True, True] * 3


@pytest.mark.parametrize("order", [(0, *rest) for rest in permutations((1, 2, 3))])
def test_parent_with_three_sub_agents_is_four_rows(session: Session, order: tuple[int, ...]) -> None:
    session.call("parent", [70])
    for number in (1, 2, 3):
        session.call(f"sub {number}", [50 + number])
    session.call("sub 2 again", [9], "sub 2")
    session.call("parent again", [6], "parent")
    result = session.make_trajectories([*order, 4, 5])
    assert rows(result) == 4
    assert len(result.trajectories) == 1
    (expected,) = session.make_trajectories().trajectories
    assert expected.tokens.ids[0] == 70, "the very first call stays first"
    assert result.trajectories[0].tokens.ids.tolist() == expected.tokens.ids.tolist()


def test_branches_of_one_call_train_its_tokens_once(session: Session) -> None:
    session.call("a", [5])
    session.call("b", [6], "a")
    session.call("c", [7], "a")
    result = session.make_trajectories()
    tokens = result.trajectories[0].tokens
    assert sorted(tokens.ids[tokens.sampled].tolist()) == [1, 1, 1, 100, 101, 102]
    assert result.metrics["gateway/rows"] == 2


def test_sampled_tokens_are_trained_or_excluded_by_reason(session: Session) -> None:
    session.call("a", [5])
    session.call("gone", [6], "a", delivered=False)
    session.call("cut", [7], "a")
    session.call("cancelled", [9], "a")
    session.calls.pop()
    metrics = session.make_trajectories(others=(4, 3)).metrics
    assert metrics == {
        "gateway/calls": 3,
        "gateway/rows": 1,
        "gateway/sampled_tokens": 15,
        "gateway/trained_tokens": 4,
        "gateway/excluded_tokens": 11,
        "gateway/excluded_tokens/undelivered": 2,
        "gateway/excluded_tokens/unanswered": 2,
        "gateway/excluded_tokens/behind_stop_text": 4,
        "gateway/excluded_tokens/cancelled": 3,
        "gateway/rejected_rewards": 0,
        "gateway/branches": 2,
    }


def test_excluded_call_is_context_of_its_continuation(session: Session) -> None:
    session.call("a", [5], delivered=False)
    session.call("b", [6], "a")
    (trajectory,) = session.make_trajectories().trajectories
    assert trajectory.tokens.ids.tolist() == [5, 100, 1, 6, 101, 1]
    assert trajectory.tokens.sampled.tolist() == [False] * 4 + [True] * 2


def test_roles_are_trajectories(session: Session) -> None:
    session.call("a", [5], role="solver")
    session.call("b", [6], role="judge")
    session.call("c", [7], "a", role="solver")
    assert [(each.name, len(each.steps)) for each in session.make_trajectories().trajectories] == [
        ("solver", 2),
        ("judge", 1),
    ]


def test_a_name_of_the_request_is_the_role(session: Session) -> None:
    session.call("a", [5], name="planner")
    session.call("b", [6], "a")
    session.call("c", [7])
    assert [(each.name, len(each.steps)) for each in session.make_trajectories().trajectories] == [
        ("planner", 2),
        ("agent", 1),
    ]


def test_groups_split_rows_and_ungrouped_calls_follow_lineage(session: Session) -> None:
    session.call("a", [5], group="x")
    session.call("b", [6], group="y")
    session.call("c", [7], "a")
    session.call("d", [8])
    found = [(each.uid, len(each.steps)) for each in session.make_trajectories().trajectories]
    assert found == [("t:0/agent/x", 2), ("t:0/agent/y", 1), ("t:0/agent", 1)]


def test_reward_of_unknown_role_lists_the_roles() -> None:
    episode = Episode(id="t:0", trajectories=[Trajectory("solver", uid="t:0/solver")])
    assign_rewards(episode, AgentResult.parse({"reward": {"solvr": 1.0}}))
    said = episode.trajectories[0].info[REWARD_ERROR]
    assert "'solvr'" in said
    assert "'solver'" in said


def test_role_without_calls_may_have_a_reward() -> None:
    episode = Episode(id="t:0", trajectories=[Trajectory("solver", uid="t:0/solver")])
    assign_rewards(episode, AgentResult.parse({"reward": {"solver": 1.0, "judge": 0.5}}))
    assert REWARD_ERROR not in episode.trajectories[0].info


@pytest.mark.parametrize("metrics", [[1, 2], "x", 3])
def test_metrics_without_names_are_refused(metrics: object) -> None:
    with pytest.raises(RolloutError, match="as `metrics`"):
        AgentResult.parse({"metrics": metrics})


@pytest.mark.parametrize(
    ("calls", "warned"), [((0, 0), 1), ((0, 0, 0, 0), 1), ((0,), 0), ((0, 1, 0, 0), 0), ((3, 0, 0), 0)]
)
def test_step_without_calls_is_reported_once(
    calls: tuple[int, ...], warned: int, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_warnings()
    no_call_warning = NoCallWarning(2)
    for each in calls:
        no_call_warning.note(each)
    assert capsys.readouterr().err.count(NO_CALL) == warned
