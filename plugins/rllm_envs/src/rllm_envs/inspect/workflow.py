"""The workflow `inspect`: inspect runs the sample, and the policy answers its model calls through the gateway."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from inspect_ai._util.text import is_finite_number
from inspect_ai.log import EvalSample
from inspect_ai.scorer import CORRECT, INCORRECT, NOANSWER, PARTIAL, Score, value_to_float

from rllm_core.contracts.workflow import Workflow, WorkflowContext
from rllm_core.data.types import Episode, TerminationReason
from rllm_core.errors import RolloutError
from rllm_envs.hosted import SESSION_KEYS
from rllm_envs.inspect.loading import SAMPLE, SPLIT, find_place
from rllm_envs.inspect.options import POLICY
from rllm_envs.inspect.running import OpenedTask
from rllm_envs.sessions import SeatSessions, is_too_long, set_reward, sum_metrics

WORDS = {CORRECT, INCORRECT, PARTIAL, NOANSWER, "yes", "no", "true", "false"}
"""Values that inspect turns into numbers. It turns all other text into 0."""
TURN_LIMITS = {"turn", "message"}
TIME_LIMITS = {"time", "working"}


class InspectWorkflow(Workflow):
    """Runs a sample of inspect. Its trajectories have the value of a score as reward.

    If a solver, a scorer or a sandbox fails, its trajectories have no reward, and their info contains the cause.
    """

    config_keys: ClassVar[frozenset[str]] = SESSION_KEYS

    def __init__(self, context: WorkflowContext, **options: Any) -> None:
        super().__init__(context, **options)
        self._opened: OpenedTask = context.resource

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        opened = self._opened
        self.episode = episode = Episode(id=uid)
        sessions = SeatSessions(opened.gateway, self.context, task, uid)
        running = opened.evaluation.run(task[SPLIT], task[SAMPLE], sessions)
        try:
            # Nothing is trained on a rollout that ends early, because inspect has not scored it.
            sample = await opened.gateway.link.run_unless_stopped(running)
        finally:
            seats = await sessions.close()
        for seat in seats:
            seat.session.check(seat.calls)
        trained = [seat for seat in seats if seat.key == POLICY]
        episode.trajectories = [each for seat in trained for each in seat.made.trajectories]
        self._set_reward(episode, sample)
        episode.metrics.update(sum_metrics(seats, {POLICY}))
        limit = sample.limit.type if sample.limit else None
        if any(map(is_too_long, trained)):
            episode.termination_reason = TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED
        elif limit in TURN_LIMITS:
            episode.termination_reason = TerminationReason.MAX_TURNS_EXCEEDED
        elif limit in TIME_LIMITS:
            episode.termination_reason = TerminationReason.TIMEOUT
        else:
            episode.termination_reason = TerminationReason.ENV_DONE
        return episode

    def _set_reward(self, episode: Episode, sample: EvalSample) -> None:
        """Set the reward, or the cause of a missing reward. The last step gets the whole reward."""
        params = self._opened.params
        reward, cause = read_reward(sample, params.reward)
        frames = sample.error.traceback.rstrip() if sample.error else ""
        if cause:
            cause += find_place(frames, params.task)
        if not episode.trajectories and cause:
            raise RolloutError(
                "environment-failed",
                f"The sample {sample.id!r} of inspect failed: {cause}.",
                details="\n".join(frames.splitlines()[-3:]),
            )
        components = read_components(sample.scores or {})
        for trajectory in episode.trajectories:
            set_reward(trajectory, reward, cause, components)
        episode.is_correct = reward is not None and reward > 0


def read_reward(sample: EvalSample, name: str | None) -> tuple[float | None, str | None]:
    """Return the reward of a sample and None, or None and the cause of a missing reward.

    Args:
        sample: a sample that has ended.
        name: ``SCORER`` or ``SCORER.KEY``. None for the first scorer.
    """
    if sample.error is not None:
        return None, sample.error.message
    scores = sample.scores or {}
    scorer, _, key = (name or next(iter(scores), "")).partition(".")
    if scorer not in scores:
        return None, f"no score of the scorer {scorer!r}" if scorer else "no score"
    score = scores[scorer]
    value: Any = score.value
    if key:
        if not isinstance(value, Mapping) or key not in value:
            return None, f"the score {scorer!r} has no key {key!r}"
        value = value[key]
    reward = read_value(value)
    if reward is not None:
        return reward, None
    if isinstance(value, Mapping):
        return None, f"the score {scorer!r} has the keys {', '.join(value)}: set rllm.env.env_args.reward={scorer}.KEY"
    reason = score.reason or score.explanation
    return None, f"the score {scorer!r} is {value!r}{f': {reason}' if reason else ''}"


def read_value(value: Any) -> float | None:
    """Return a score's value as a number. None if it is not finite, or inspect cannot turn it into a number."""
    if isinstance(value, str):
        if value not in WORDS and value.lower() not in WORDS and not is_finite_number(value):
            return None
    elif not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value_to_float()(value))


def read_components(scores: Mapping[str, Score]) -> dict[str, float]:
    """Return all numbers of a sample's scores. A key of a dictionary is ``SCORER.KEY``."""
    values: dict[str, Any] = {}
    for name, score in scores.items():
        if isinstance(score.value, Mapping):
            values |= {f"{name}.{key}": value for key, value in score.value.items()}
        else:
            values[name] = score.value
    read = {name: read_value(value) for name, value in values.items()}
    return {name: value for name, value in read.items() if value is not None}
