"""Make trajectories from a session's calls, one per role and group, and give them their rewards."""

from __future__ import annotations

import copy
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

from rllm_core.algorithms.columns import EXTRACTED, REWARD_COMPONENTS, REWARD_ERROR
from rllm_core.contracts.reward import Rollout, Score
from rllm_core.contracts.workflow import WorkflowContext
from rllm_core.data.types import Episode, Step, Trajectory
from rllm_core.errors import RolloutError
from rllm_gateway.apis.exchange import REASONING
from rllm_gateway.sessions.link import SessionTrace, TracedCall, Transcript

UNDELIVERED, UNTRACED, BEHIND_STOP, CANCELLED = "undelivered", "unanswered", "behind_stop_text", "cancelled"
REASONS = (UNDELIVERED, UNTRACED, BEHIND_STOP, CANCELLED)
"""Reasons why tokens are excluded from training. Each rollout has a metric for each, so means are over all rollouts."""
PREFIX = "gateway"
REJECTED = f"{PREFIX}/rejected_rewards"
"""Metric: the number of reported rewards that did not count."""


@dataclass
class SessionTrajectories:
    """The trajectories of a session, for training."""

    trajectories: list[Trajectory] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    """Numbers of sampled, trained and excluded tokens, and of calls and rows. Also the counters of the gateway."""
    last: str | None = None
    """Id of the last stored call that is used for training. None if no call is used."""


def make_trajectories(
    trace: SessionTrace, sampled: Mapping[str, Step], uid: str, cut_tokens: int = 0, cancelled_tokens: int = 0
) -> SessionTrajectories:
    """Return the trajectories of a session.

    Args:
        trace: the session's calls, and how they continue each other.
        sampled: call id -> its tokens. Calls that are missing in the trace were never answered.
        uid: uid of the rollout, from which the uids of trajectories are made.
        cut_tokens: number of sampled tokens after stop strings.
        cancelled_tokens: number of sampled tokens of calls whose client disconnected, or which failed.
    """
    roots = roots_of(trace.calls)
    excluded: Counter[str] = Counter()
    parts: defaultdict[tuple[str, str | None], list[TracedCall]] = defaultdict(list)
    for call in trace.calls:
        if call.id not in sampled:
            continue
        if not call.delivered:
            excluded[UNDELIVERED] += len(sampled[call.id].response_ids)
        else:
            root = roots[call.id]
            parts[call.name or root.name or call.role, call.group or root.group].append(call)
    for call_id in sampled.keys() - {call.id for call in trace.calls}:
        excluded[UNTRACED] += len(sampled[call_id].response_ids)
    excluded.update({BEHIND_STOP: cut_tokens, CANCELLED: cancelled_tokens})
    trajectories = [
        Trajectory(
            role,
            [sampled[call.id] for call in in_lineages(calls, sampled)],
            uid=f"{uid}/{role}" if group is None else f"{uid}/{role}/{group}",
        )
        for (role, group), calls in parts.items()
    ]
    last = next((call.id for call in reversed(trace.calls) if call.delivered and call.id in sampled), None)
    return SessionTrajectories(trajectories, _metrics(trace, trajectories, excluded), last)


def _metrics(trace: SessionTrace, trajectories: list[Trajectory], excluded: Counter[str]) -> dict[str, float]:
    trained = sum(trajectory.response_length for trajectory in trajectories)
    metrics = {
        "calls": len(trace.calls),
        "rows": sum(len(trajectory.tokens.segment_starts) for trajectory in trajectories),
        "sampled_tokens": trained + excluded.total(),
        "trained_tokens": trained,
        "excluded_tokens": excluded.total(),
        **{f"excluded_tokens/{reason}": excluded[reason] for reason in REASONS},
        "rejected_rewards": trace.rejected_rewards,
        **trace.counters,
    }
    return {f"{PREFIX}/{name}": float(value) for name, value in metrics.items()}


def roots_of(calls: Sequence[TracedCall]) -> dict[str, TracedCall]:
    """Return call id -> first call of its lineage."""
    known = {call.id: call for call in calls}
    roots: dict[str, TracedCall] = {}
    for call in calls:
        parent = call.parent if call.parent in known else None
        # A parent comes before the calls that continue it.
        roots[call.id] = call if parent is None else roots[parent]
    return roots


def in_lineages(calls: Sequence[TracedCall], sampled: Mapping[str, Step]) -> list[TracedCall]:
    """Sort the calls, so that as many calls as possible come directly after the call that they continue.

    Calls of parallel agents arrive in any order, so siblings are sorted by their tokens. The very first call stays
    first.
    """
    known = {call.id for call in calls}
    children: defaultdict[str | None, list[TracedCall]] = defaultdict(list)
    for call in calls:
        children[call.parent if call.parent in known else None].append(call)
    for parent, siblings in children.items():
        kept = siblings[:1] if parent is None else []
        rest = sorted(siblings[len(kept) :], key=lambda call: _content(sampled[call.id]))
        siblings[:] = [*kept, *rest]
    ordered: list[TracedCall] = []
    open_calls = [*reversed(children[None])]
    while open_calls:
        call = open_calls.pop()
        ordered.append(call)
        open_calls += reversed(children[call.id])
    return ordered


def _content(call: Step) -> tuple[bytes, bytes]:
    return call.prompt_ids.tobytes(), call.response_ids.tobytes()


FIELDS = ("reward", "answer", "correct", "metrics")


@dataclass(frozen=True, kw_only=True)
class AgentResult:
    """The result that an agent returned."""

    reward: float | None = None
    """Reward of every role that is not in `rewards`. None: no such reward."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Role -> its reward."""
    answer: str | None = None
    """Answer that ``rllm.reward`` scores instead of the last response."""
    correct: bool | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def parse(cls, value: Any, agent: str = "The agent") -> AgentResult:
        """Parse a result. A number is a reward, a string is an answer, and an object contains some of `FIELDS`.

        `agent` is the agent's name in errors.

        Raises:
            RolloutError: the result has a different form.
        """
        match value:
            case None:
                return cls()
            case str():
                return cls(answer=value)
            case Mapping():
                return _of_object(value, agent)
            case _:
                return cls(reward=_number(agent, "", value))

    @property
    def has_reward(self) -> bool:
        """True if it contains a reward, or `correct`."""
        return self.reward is not None or bool(self.rewards) or self.correct is not None

    def without_reward(self) -> AgentResult:
        """Return the answer and the metrics."""
        return AgentResult(answer=self.answer, metrics=self.metrics)


def _of_object(value: Mapping[str, Any], agent: str) -> AgentResult:
    if unknown := sorted(set(value) - {*FIELDS}):
        raise RolloutError(
            "bad-agent-result",
            f"{agent} returned the unknown key {', '.join(map(repr, unknown))}.",
            f"Return a number, text, or a dict with some of {', '.join(FIELDS)}.",
        )
    reward, answer, correct = value.get("reward"), value.get("answer"), value.get("correct")
    by_role = reward if isinstance(reward, Mapping) else {}
    if not isinstance(correct, bool | None):
        raise RolloutError(
            "bad-agent-result", f"{agent} returned {correct!r:.80} as `correct`.", "Return true or false."
        )
    metrics = value.get("metrics") or {}
    if not isinstance(metrics, Mapping):
        raise RolloutError(
            "bad-agent-result", f"{agent} returned {metrics!r:.80} as `metrics`.", "Return a dict of numbers by name."
        )
    return AgentResult(
        reward=None if reward is None or by_role else _number(agent, "reward", reward),
        rewards={role: _number(agent, f"reward of {role}", each) for role, each in by_role.items()},
        answer=None if answer is None else str(answer),
        correct=correct,
        metrics={name: _number(agent, name, each) for name, each in metrics.items()},
    )


def _number(agent: str, name: str, value: Any) -> float:
    if not isinstance(value, Real) or not math.isfinite(value):
        what = f"{value!r:.80} as {name}" if name else f"{value!r:.80}"
        remedy = "Return a finite number." if name else f"Return a number, text, or a dict with {', '.join(FIELDS)}."
        raise RolloutError("bad-agent-result", f"{agent} returned {what}.", remedy)
    return float(value)


NO_REWARD = (
    "the agent gave no reward. Add --reward, or let your own function return one, or set "
    "rllm.workflow.workflow_args.reports_reward=true and let your program print one"
)


def assign_rewards(episode: Episode, result: AgentResult) -> None:
    """Set the reward of every trajectory from its role. A trajectory without a reward gets the reason in its info."""
    for trajectory in episode.trajectories:
        reward = result.rewards.get(trajectory.name, result.reward)
        _set(trajectory, reward)
        if reward is None:
            trajectory.info[REWARD_ERROR] = _no_reward(episode, result)
        else:
            trajectory.info.pop(REWARD_ERROR, None)
    rewards = [trajectory.reward for trajectory in episode.trajectories if trajectory.reward is not None]
    episode.is_correct = bool(rewards and max(rewards) > 0) if result.correct is None else result.correct
    # The agent cannot replace the metrics of the gateway.
    episode.metrics = {**result.metrics, **episode.metrics}


def _no_reward(episode: Episode, result: AgentResult) -> str:
    roles = {trajectory.name for trajectory in episode.trajectories}
    unknown = sorted(result.rewards.keys() - roles)
    if not unknown:
        return NO_REWARD
    known = ", ".join(map(repr, sorted(roles)))
    return f"the agent gave a reward to {', '.join(map(repr, unknown))}, and the roles that made calls are {known}"


def rollout_of(
    task: Mapping[str, Any],
    episode: Episode,
    last: Step,
    transcript: Transcript,
    answer: str | None,
    context: WorkflowContext,
) -> Rollout:
    """Return the `Rollout` that ``rllm.reward`` receives, in the same form as from built-in workflows.

    Args:
        task: data of the task.
        episode: the episode with all trajectories.
        last: the last response.
        transcript: the conversation that ends with the last response.
        answer: the agent's answer, which replaces the last response. None: the agent returned none.
        context: context of the rollout.
    """
    response = context.engine.renderer.parse(last.prompt_ids, last.response_ids, transcript.tools)
    response = response.ended_by(last.info["finish_reason"])
    if answer is not None:
        response = replace(response, text=answer, content=answer, finish_reason="stop")
    hidden = () if context.accumulate_reasoning else (REASONING,)
    return Rollout(
        data=copy.deepcopy(dict(task)),
        messages=[{key: value for key, value in each.items() if key not in hidden} for each in transcript.messages],
        response=response,
        response_tokens=sum(trajectory.response_length for trajectory in episode.trajectories),
        response_ids=tuple(map(int, last.response_ids)) if answer is None else (),
        task_batch=context.sampling.task_batch,
    )


def add_score(episode: Episode, found: Score, result: AgentResult) -> None:
    """Add the score of ``rllm.reward`` to the reward of the tests, if there are any."""
    episode.metrics.update(found.metrics)
    for trajectory in episode.trajectories:
        _add(trajectory, found)
    if found.correct is not None:
        episode.is_correct = found.correct
    elif result.correct is None and found.value is not None:
        episode.is_correct = any((trajectory.reward or 0.0) > 0 for trajectory in episode.trajectories)


def _add(trajectory: Trajectory, found: Score) -> None:
    total = trajectory.info.setdefault(REWARD_COMPONENTS, {})
    for name, value in found.components.items():
        total[name] = total.get(name, 0.0) + float(value)
    if found.extracted is not None:
        trajectory.info[EXTRACTED] = found.extracted
    if found.value is None:
        _set(trajectory, None)
        trajectory.info[REWARD_ERROR] = found.feedback
    else:
        _set(trajectory, (trajectory.reward or 0.0) + found.value)
        trajectory.info.pop(REWARD_ERROR, None)


def _set(trajectory: Trajectory, reward: float | None) -> None:
    """Set a trajectory's reward, and give it to the last step, as for an environment with a reward at the end."""
    trajectory.reward = reward
    for step in trajectory.steps:
        step.reward = None if reward is None else 0.0
    if trajectory.steps:
        trajectory.steps[-1].reward = reward
