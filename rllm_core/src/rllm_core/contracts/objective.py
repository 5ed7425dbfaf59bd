"""Objectives: pipelines that learn, for example from rewards, from examples or from a teacher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rllm_core.contracts.plugin import Plugin


@dataclass(frozen=True, kw_only=True)
class ObjectiveFlag:
    """A flag of ``rllm train`` that chooses an objective and sets one more key."""

    name: str
    """The flag without its dashes, such as ``stored``."""
    metavar: str
    key: str
    """The config key that the flag sets."""
    value: Callable[[str], Any]
    """Takes the flag's text and returns the value of `key`."""


@dataclass(frozen=True, kw_only=True)
class ObjectivePlugin(Plugin[Any]):
    """A plugin spec that offers an objective. Users choose it with ``--objective`` or ``rllm.objective``.

    A run has the objective whose `stage` comes first in its pipeline. ``rllm.objective`` sets default values.

    This objective imitates the best rollout of each group::

        from rllm_core.contracts import ObjectivePlugin, StagePlugin
        from rllm_core.plugins import hookimpl

        class KeepBest:
            def __init__(self, context, params):
                pass

            async def __call__(self, step):
                for group in step.trajectory_groups:
                    group.trajectories = [max(group.trajectories, key=lambda each: each.reward)]

        @hookimpl
        def rllm_stages():
            groups = frozenset({"trajectory_groups"})
            yield StagePlugin(
                name="keep_best", summary="Keep the best rollout.", load=lambda: KeepBest, reads=groups, writes=groups
            )

        @hookimpl
        def rllm_objectives():
            rollouts = ["generate", "impute_names", "group", "check_rewards", "keep_best"]
            yield ObjectivePlugin(
                name="best_of_n",
                summary="Imitate the best rollout of each group.",
                stage="rllm-example/keep_best",
                defaults={
                    "rllm.pipeline.stages": [*rollouts, "build_batch", "supervise", "update", "log"],
                    "rllm.algorithm.loss_fn": "cross_entropy",
                },
            )
    """

    kind: ClassVar[str] = "objective"

    load: Callable[[], Callable[[Any], Any] | None] = lambda: None
    """Returns a subclass of `rllm.planning.row_objective.RowObjective` if rows of data replace rollouts. Returns None
    if the objective learns from rollouts."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Default config values, by key, such as ``{"rllm.pipeline.stages": [...]}``. Users' values take precedence."""
    stage: str | None = None
    """Qualified name (``PACKAGE/NAME``) of a stage that every run with this objective has."""
    flag: ObjectiveFlag | None = None
    """Its flag besides ``--objective``. `summary` is the flag's help. None if it has none."""
    shown_metrics: Mapping[str, str] = field(default_factory=dict)
    """Metrics of a step that the terminal shows first, with their labels, such as ``{"distill/kl": "divergence"}``. A
    label that ends in ``%`` is for a share."""
