"""Hooks of what happens to a batch: estimators, losses, groupings, rejection modes, stages. All are in ``specs``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts.estimator import EstimatorPlugin
from rllm_core.contracts.grouping import GroupingPlugin
from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.rejection import RejectionPlugin
from rllm_core.contracts.stage import StagePlugin
from rllm_core.plugins.markers import hookspec


@hookspec
def rllm_estimators() -> Iterable[EstimatorPlugin[Any]]:
    """Offer advantage estimators, chosen by ``rllm.algorithm.adv_estimator``.

    Rewards of all trajectories of one role go in, one advantage per trajectory, step or token comes out::

        from pydantic import Field
        from rllm_core.contracts.estimator import Advantages, EstimatorPlugin
        from rllm_core.contracts.plugin import Params
        from rllm_core.plugins import hookimpl

        class ScaledParams(Params):
            scale: float = Field(1.0, gt=0, description="Multiplies every advantage.")

        def scaled_reward(inputs, params):
            return Advantages(values=params.scale * inputs.rewards)

        @hookimpl
        def rllm_estimators():
            return [
                EstimatorPlugin(
                    name="scaled_reward",
                    summary="The reward itself, times a constant.",
                    params=ScaledParams,
                    load=lambda: scaled_reward,
                )
            ]
    """
    return ()


@hookspec
def rllm_losses() -> Iterable[LossPlugin[Any]]:
    """Offer policy losses, chosen by ``rllm.algorithm.loss_fn``.

    Log-probs and advantages of sampled tokens go in as torch tensors, the loss of each token comes out. A module
    that needs ``import torch`` does it inside `load`::

        from rllm_core.contracts.loss import LossPlugin
        from rllm_core.contracts.plugin import NoParams
        from rllm_core.plugins import hookimpl

        def unclipped(inputs, params):
            return -(inputs.logprobs - inputs.old_logprobs).exp() * inputs.advantages

        @hookimpl
        def rllm_losses():
            return [
                LossPlugin(
                    name="unclipped", summary="Importance ratio, no clipping.", params=NoParams, load=lambda: unclipped
                )
            ]
    """
    return ()


@hookspec
def rllm_groupings() -> Iterable[GroupingPlugin[Any]]:
    """Offer ways of grouping, chosen by ``rllm.transform.grouping``.

    Episodes go in, groups of trajectories whose rewards are compared come out::

        from rllm_core.contracts.grouping import GroupingPlugin
        from rllm_core.contracts.plugin import NoParams
        from rllm_core.plugins import hookimpl

        def load_one_group():
            from rllm_core.data.types import TrajectoryGroup        # needs numpy, so it waits until it is called for

            def one_group(episodes, params):
                everything = [trajectory for episode in episodes for trajectory in episode.trajectories]
                return [TrajectoryGroup(group_id="batch", trajectories=everything)]

            return one_group

        @hookimpl
        def rllm_groupings():
            return [
                GroupingPlugin(
                    name="one_group", summary="The whole batch is one group.", params=NoParams, load=load_one_group
                )
            ]
    """
    return ()


@hookspec
def rllm_rejections() -> Iterable[RejectionPlugin[Any]]:
    """Offer rejection modes, chosen by ``rllm.rejection_sample.mode``.

    Groups of one step go in, a verdict comes out: train on these, keep some for later, drop the rest::

        from rllm_core.contracts.plugin import NoParams
        from rllm_core.contracts.rejection import RejectionPlugin, Verdict
        from rllm_core.plugins import hookimpl

        class DropSingles:
            def __init__(self, params):
                pass

            def __call__(self, groups):
                train = [group for group in groups if len(group.trajectories) > 1]
                return Verdict(train=train, dropped={"single": len(groups) - len(train)})

            def state_dict(self):
                return {}

            def load_state_dict(self, state):
                pass

        @hookimpl
        def rllm_rejections():
            return [
                RejectionPlugin(
                    name="drop_singles", summary="Drop groups of one.", params=NoParams, load=lambda: DropSingles
                )
            ]
    """
    return ()


@hookspec
def rllm_stages() -> Iterable[StagePlugin[Any]]:
    """Offer pipeline stages, placed by ``rllm.pipeline``.

    A stage says what it reads and writes, so that the order is checked before the run starts::

        from rllm_core.contracts.plugin import NoParams
        from rllm_core.contracts.stage import StagePlugin
        from rllm_core.plugins import hookimpl

        class CountGroups:
            def __init__(self, context, params):
                pass

            async def __call__(self, step):
                step.metrics["my/groups"] = float(len(step.trajectory_groups))

        @hookimpl
        def rllm_stages():
            return [
                StagePlugin(
                    name="count_groups",
                    summary="Log how many groups there are.",
                    params=NoParams,
                    load=lambda: CountGroups,
                    reads=frozenset({"trajectory_groups"}),
                    writes=frozenset(),
                )
            ]
    """
    return ()
