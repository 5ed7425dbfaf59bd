"""Advantage estimators: from rewards to one advantage per trajectory, step or token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray

    from rllm_core.data.types import TrajectoryGroup
    from rllm_core.schema.algorithm_sections import AlgorithmSection

Level = Literal["trajectory", "step", "token"]
Scope = Literal["trajectory", "group", "role", "batch"]

ALWAYS_FILLED = frozenset({"step_rewards", "reward_components", "sampling_logprobs"})
"""Needs that no backend has to fill. They come with the trajectories, if the workflow reports them."""
FILLED_BY_STAGES = frozenset({"greedy_rewards"})
"""Needs that a pipeline stage fills. The stage lists the need in `writes`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AdvantageInput:
    """All trajectories of one role in one training batch, as columns. Arrays are read-only.

    ``n_traj``, ``n_group``, ``n_step`` and ``n_token`` are the role's numbers of trajectories, groups, model calls and
    tokens (prompt and response). An array of offsets has one entry more than the number of parts.
    """

    rewards: NDArray[np.float64]
    """(n_traj,) trajectory rewards, ordered by group."""
    group_offsets: NDArray[np.int64]
    """(n_group + 1,) group ``g`` contains trajectories ``group_offsets[g]:group_offsets[g + 1]``."""
    response_lengths: NDArray[np.int64]
    """(n_traj,) number of tokens that the model sampled in each trajectory."""
    step_offsets: NDArray[np.int64]
    """(n_traj + 1,) trajectory ``t`` contains steps ``step_offsets[t]:step_offsets[t + 1]``."""
    step_rewards: NDArray[np.float64]
    """(n_step,) reward of each step. NaN if the workflow set none."""
    token_offsets: NDArray[np.int64]
    """(n_traj + 1,) trajectory ``t`` contains tokens ``token_offsets[t]:token_offsets[t + 1]``."""
    loss_mask: NDArray[np.bool_]
    """(n_token,) True if the model sampled the token."""
    groups: Sequence[TrajectoryGroup]
    """(n_group,) the groups themselves, for their metadata."""
    sampling_logprobs: NDArray[np.float32] | None = None
    """(n_token,) log-probs that the sampler reported. NaN if it reported none, 0 if `loss_mask` is False."""
    old_logprobs: NDArray[np.float32] | None = None
    """(n_token,) log-probs at the start of the update. Filled only if needed."""
    ref_logprobs: NDArray[np.float32] | None = None
    """(n_token,) log-probs under the reference model. Filled only if needed."""
    values: NDArray[np.float32] | None = None
    """(n_token,) the critic's estimates. Filled only if needed."""
    sum_pi_squared: NDArray[np.float32] | None = None
    """(n_token,) sum of squared probabilities over the vocabulary at each token's position. Filled only if needed."""
    greedy_rewards: NDArray[np.float64] | None = None
    """(n_traj,) reward of the greedy rollout for the same role and task. Filled only if needed."""
    component_names: tuple[str, ...] = ()
    """Names of the reward parts that every trajectory reports, sorted."""
    reward_components: NDArray[np.float64] | None = None
    """(n_traj, len(component_names)) values of the reward parts. None if trajectories report no common parts."""
    algorithm_config: AlgorithmSection | None = None
    """The run's ``rllm.algorithm``, for estimators with rLLM's classic signature. Other estimators declare their own
    options, which rllm checks. rllm does not check which keys an estimator reads from this section."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Advantages:
    """The result of an estimator. `values` has the shape (n_traj,), (n_step,) or (n_token,), depending on `level`."""

    values: NDArray[np.float64]
    level: Level = "trajectory"
    returns: NDArray[np.float64] | None = None
    """(n_token,) targets for a critic, 0 for tokens that the model did not sample. A backend with a critic trains it on
    them."""
    baselines: NDArray[np.float64] | None = None
    """(n_traj,) the baseline that each reward was compared with, NaN if there was none. It is only for display."""


class AdvantageEstimator(Protocol):
    """A pure function of its inputs and options. It has no state and does not change its inputs."""

    def __call__(self, inputs: AdvantageInput, params: Any, /) -> Advantages: ...


class StatefulEstimator(Protocol):
    """An estimator that keeps data between steps, such as a running mean. See `EstimatorPlugin.keeps_state`.

    Everything that it keeps must be in `state_dict`, so that a resumed run is identical. Steps come in training order,
    also in asynchronous runs and in ``rllm rescore``.
    """

    def __call__(self, inputs: AdvantageInput, params: Any, /) -> Advantages: ...

    def state_dict(self) -> dict[str, Any]:
        """Return the data that the estimator keeps between steps, as JSON."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class EstimatorPlugin(Plugin[ParamsT]):
    """A plugin spec that offers an advantage estimator.

    Users choose it with ``--estimator``, ``rllm.algorithm.adv_estimator`` or ``estimator_map.<role>``.

    The estimator is called once per role and training step, with all groups of the role.

    An estimator takes the rewards of one role's trajectories. It returns one advantage per trajectory, step or token::

        from pydantic import Field
        from rllm_core.contracts import Advantages, EstimatorPlugin, Params
        from rllm_core.plugins import hookimpl

        class ScaledParams(Params):
            scale: float = Field(1.0, gt=0, description="Multiplies every advantage.")

        def scaled_reward(inputs, params):
            return Advantages(values=params.scale * inputs.rewards)

        @hookimpl
        def rllm_estimators():
            yield EstimatorPlugin(
                name="scaled_reward",
                summary="The reward itself, times a constant.",
                load_params=lambda: ScaledParams,
                load=lambda: scaled_reward,
            )
    """

    kind: ClassVar[str] = "estimator"

    load: Callable[[], AdvantageEstimator | Callable[[], StatefulEstimator]]
    keeps_state: bool = False
    """True if `load` returns a class or function that makes a `StatefulEstimator`. A run makes one for each role, or
    one for all roles if the scope is ``batch``. Checkpoints contain its state."""
    level: Level = "trajectory"
    scope: Scope = "group"
    """The rewards that one advantage depends on: the trajectory's own, its group's, its role's, or the whole batch's.
    """
    needs: frozenset[str] = frozenset()
    """Columns that must be filled before the estimator runs.

    - The backend fills ``old_logprobs``, ``ref_logprobs``, ``values`` and ``sum_pi_squared``.
    - A stage fills ``greedy_rewards``.
    - Trajectories always have ``sampling_logprobs``. They have ``step_rewards`` and ``reward_components`` if the
      workflow reports them.

    If an estimator works with and without step rewards, list ``step_rewards`` here and mark the option that enables
    them with `OptionRole.READS_STEP_REWARDS` (see `rllm_core.schema.section`). If the option is false, settings that
    shape step rewards are rejected.
    """
    rescales_components: bool = False
    """True if the estimator rescales all `reward_components` to a common scale, so that the size of a reward's weight
    has no effect. A run with such weights in ``rllm.reward`` is then rejected. Set them with the estimator's option
    `weights` instead."""
    default_loss: str | None = None
    """The loss to use if ``rllm.algorithm.loss_fn`` is null."""
