"""Estimators that keep state between training steps: rae, spo, and mix, whose parts may keep state.

Advantages are (n_traj,) in float64. Advantages of mix are (n_token,).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from rllm_core.algorithms.advantage import whiten
from rllm_core.algorithms.estimation import EstimatorChoice, EstimatorObjects, to_tokens
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.estimator import AdvantageInput, Advantages
from rllm_core.data.types import TrajectoryGroup
from rllm_core.plugins import resolve
from rllm_core.schema.section import Choice
from rllm_estimators.options import MixParams, RaeParams, SpoParams


class RoleBaseline:
    """r - b with a running mean b of the role's rewards (SPIRAL's role-conditioned advantage estimation, Liu et al.
    2025, arXiv:2506.24119).

    For each trajectory b = decay b + (1 - decay) r, from 0, before it is subtracted. The paper updates b with each
    trajectory in turn. Here all n trajectories of a step use the mean reward, so that their order does not
    matter: b = decay^n b + (1 - decay^n) mean(r). Use it if roles of a game have different chances to win and tasks
    have one rollout.
    """

    def __init__(self) -> None:
        self._mean = 0.0

    def __call__(self, inputs: AdvantageInput, params: RaeParams) -> Advantages:
        n = len(inputs.rewards)
        if n:
            kept = params.decay**n
            self._mean = kept * self._mean + (1 - kept) * float(inputs.rewards.mean())
        return Advantages(values=inputs.rewards - self._mean, baselines=np.full(n, self._mean))

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self._mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._mean = float(state["mean"])


class TaskBaseline:
    """r - alpha / (alpha + beta), whitened over the role's trajectories (SPO, Xu and Ding 2025, arXiv:2509.13232).

    alpha and beta describe a Beta distribution of the task's reward, from 0 to 1, before this step. After the step
    alpha = retention alpha + sum(r) and beta = retention beta + sum(1 - r) over the task's trajectories. The paper
    sets retention from the KL divergence since the task's last step, from 0.875 to 0.96, and first estimates each
    task with 8 rollouts. Here retention is constant, and the first estimate is `prior` with the weight of 8 rollouts.
    Use it with one rollout for each task and several epochs.
    """

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, float]] = {}

    def __call__(self, inputs: AdvantageInput, params: SpoParams) -> Advantages:
        tasks = [_task_id(group) for group in inputs.groups]
        first = (params.prior * params.prior_weight, (1 - params.prior) * params.prior_weight)
        means = [alpha / (alpha + beta) for alpha, beta in (self._counts.get(task, first) for task in tasks)]
        baselines = np.repeat(np.array(means), np.diff(inputs.group_offsets))
        rewards: dict[str, list[float]] = defaultdict(list)
        for task, start, end in zip(tasks, inputs.group_offsets, inputs.group_offsets[1:], strict=False):
            rewards[task] += inputs.rewards[start:end].tolist()
        for task, of_task in rewards.items():
            alpha, beta = self._counts.get(task, first)
            total = sum(of_task)
            self._counts[task] = (
                params.retention * alpha + total,
                params.retention * beta + len(of_task) - total,
            )
        return Advantages(values=whiten(inputs.rewards - baselines), baselines=baselines)

    def state_dict(self) -> dict[str, Any]:
        return {"counts": {task: list(counts) for task, counts in self._counts.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._counts = {task: (alpha, beta) for task, (alpha, beta) in state["counts"].items()}


def _task_id(group: TrajectoryGroup) -> str:
    return str(group.metadata[0].get("task_id", group.group_id)) if group.metadata else group.group_id


class Mixture:
    """Sum of weight * advantage over the parts, for each token.

    Use it to combine signals, for example outcomes and lengths, or a critic and groups. The parts' advantages are added
    unchanged, so a part that is not standardized needs a weight that fits its scale. Targets for a critic come from
    the first part that returns them. Parts may keep state.
    """

    def __init__(self) -> None:
        self._objects = EstimatorObjects()
        self._parts: list[EstimatorChoice] = []

    def __call__(self, inputs: AdvantageInput, params: MixParams) -> Advantages:
        if not self._parts:
            self._parts = [_resolve_part(part) for part in params.parts]
        values, returns = np.zeros(len(inputs.loss_mask)), None
        for number, (part, weight) in enumerate(zip(self._parts, params.weights_of_parts, strict=True)):
            who = f"part {number} of mix, estimator {part.plugin.name!r},"
            result = self._objects.function(part, [str(number)])(inputs, part.params)
            values += weight * to_tokens(inputs, result, who, part.plugin.level)
            returns = result.returns if returns is None else returns
        return Advantages(values=values, level="token", returns=returns)

    def state_dict(self) -> dict[str, Any]:
        return self._objects.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._objects.load_state_dict(state)


def _resolve_part(part: Choice) -> EstimatorChoice:
    """Return the part with this qualified name, which the planner has written."""
    options = {"name": part} if isinstance(part, str) else dict(part)
    registered = resolve("estimator", options.pop("name"))
    return PluginChoice(registered=registered, params=registered.plugin.params(**options))
