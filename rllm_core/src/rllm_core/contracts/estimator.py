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
"""Needs that no backend is asked for: they come with the trajectories, as far as the workflow reports them."""
FILLED_BY_STAGES = frozenset({"greedy_rewards"})
"""Needs that a stage of the pipeline fills: it has the need among its `writes`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AdvantageInput:
    """All trajectories of one role in one training batch, as columns. Arrays are read-only.

    ``n_traj``, ``n_group``, ``n_step`` and ``n_token`` count trajectories, groups, model calls and all tokens
    (prompt and response) of the role; offsets have one more entry than what they delimit.
    """

    rewards: NDArray[np.float64]
    """(n_traj,) trajectory rewards, group after group."""
    group_offsets: NDArray[np.int64]
    """(n_group + 1,) group ``g`` holds trajectories ``group_offsets[g]:group_offsets[g + 1]``."""
    response_lengths: NDArray[np.int64]
    """(n_traj,) tokens the model sampled in each trajectory."""
    step_offsets: NDArray[np.int64]
    """(n_traj + 1,) trajectory ``t`` holds steps ``step_offsets[t]:step_offsets[t + 1]``."""
    step_rewards: NDArray[np.float64]
    """(n_step,) reward of each step; NaN where the workflow gave none."""
    token_offsets: NDArray[np.int64]
    """(n_traj + 1,) trajectory ``t`` holds tokens ``token_offsets[t]:token_offsets[t + 1]``."""
    loss_mask: NDArray[np.bool_]
    """(n_token,) True where the model sampled the token."""
    groups: Sequence[TrajectoryGroup]
    """(n_group,) the groups themselves, for their metadata."""
    sampling_logprobs: NDArray[np.float32] | None = None
    """(n_token,) log-probs as the sampler reported them, NaN where it did not; 0 where `loss_mask` is False."""
    old_logprobs: NDArray[np.float32] | None = None
    """(n_token,) log-probs at the start of the update; filled when needed."""
    ref_logprobs: NDArray[np.float32] | None = None
    """(n_token,) log-probs under the reference model; filled when needed."""
    values: NDArray[np.float32] | None = None
    """(n_token,) the critic's estimates; filled when needed."""
    sum_pi_squared: NDArray[np.float32] | None = None
    """(n_token,) sum over the vocabulary of squared probabilities where each token was sampled; filled when needed."""
    greedy_rewards: NDArray[np.float64] | None = None
    """(n_traj,) reward of the greedy attempt of the same role at the same task; filled when needed."""
    component_names: tuple[str, ...] = ()
    """Names of the parts of the reward that every trajectory reports, sorted."""
    reward_components: NDArray[np.float64] | None = None
    """(n_traj, len(component_names)); None when trajectories report no common parts."""
    algorithm_config: AlgorithmSection | None = None
    """The run's ``rllm.algorithm``, for estimators in rLLM's classic signature. Others have options of their own, which
    are checked; what one reads from here, nobody checks."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Advantages:
    """What an estimator returns: `values` of shape (n_traj,), (n_step,) or (n_token,) according to `level`."""

    values: NDArray[np.float64]
    level: Level = "trajectory"
    returns: NDArray[np.float64] | None = None
    """(n_token,) targets for a critic, 0 where the model sampled nothing. A backend with a critic trains it on them."""
    baselines: NDArray[np.float64] | None = None
    """(n_traj,) what each reward was compared with, NaN where with nothing. For people: nothing is computed from it."""


class AdvantageEstimator(Protocol):
    """A function of its inputs and options only: no state, no mutation of the inputs."""

    def __call__(self, inputs: AdvantageInput, params: Any, /) -> Advantages: ...


@dataclass(frozen=True, kw_only=True)
class EstimatorPlugin(Plugin[ParamsT]):
    """Offers an advantage estimator.

    Chosen by ``--estimator``, ``rllm.algorithm.adv_estimator`` or ``estimator_map.<role>``.

    Called once per role and training step, with all groups of that role.
    """

    kind: ClassVar[str] = "estimator"

    load: Callable[[], AdvantageEstimator]
    level: Level = "trajectory"
    scope: Scope = "group"
    """Whose rewards one advantage depends on: its own, its group's, all of its role, or the whole batch."""
    needs: frozenset[str] = frozenset()
    """Columns that must be filled before it runs: by the backend (``old_logprobs``, ``ref_logprobs``, ``values``,
    ``sum_pi_squared``), by a stage (``greedy_rewards``), or with the trajectories: ``sampling_logprobs`` always,
    ``step_rewards`` and ``reward_components`` where the workflow reports them. An estimator that can do with and
    without step rewards needs ``step_rewards`` and marks the option that says so with `Means.READS_STEP_REWARDS` (see
    `rllm_core.schema.section`): where that is false, settings that shape them are refused."""
    rescales_components: bool = False
    """Whether it brings each of the `reward_components` to one scale, so that the size of a reward's weight is lost. A
    run with such weights in ``rllm.reward`` is refused; weights are an option of the estimator then, `weights`."""
    default_loss: str | None = None
    """The loss used when ``rllm.algorithm.loss_fn`` is null."""
