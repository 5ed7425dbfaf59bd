"""The contract of advantage estimators."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from rllm_core.algorithms.columns import GREEDY_REWARD, REWARD_COMPONENTS, build_estimator_input
from rllm_core.algorithms.estimation import to_tokens
from rllm_core.contracts.estimator import AdvantageInput, Advantages, EstimatorPlugin
from rllm_core.data import codec
from rllm_core.data.batch import build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.errors import RllmError, did_you_mean
from rllm_core.plugins.registry import Registry
from rllm_plugin_kit.plugin import PluginContract
from rllm_plugin_kit.samples import Member, fill, make_groups, random_members

COLUMNS = frozenset(field.name for field in fields(AdvantageInput)) - {"groups", "algorithm_config", "component_names"}
CONSTANTS = (0.0, 1.0, 0.1, 0.7, 1 / 3, 100.1, -0.1)
"""Rewards whose mean over a group often differs from them in the last digit."""
RAGGED = (1, 2, 5, 3, 8, 2)
SEEDS = range(3)
EXTREMES: Sequence[Sequence[float]] = (
    (1e8, -1e8, 1e8 + 1),
    (1.0, 1.0 + 1e-12, 1.0 - 1e-12),
    (1e8, 1e-12, 0.0, 0.0),
    (-1e8,),
    (1e-12, -1e-12),
)
CLOSE = 1e-5


class EstimatorContract(PluginContract[EstimatorPlugin[Any]]):
    """Contract of every estimator. The tests fill the columns in the plugin's `needs` with plausible numbers."""

    kind = "estimator"
    centres: ClassVar[bool] = True
    """True if equal rewards within its scope give advantages of exactly 0. Set it to False if they should not."""

    def prepare(self, trajectory: Trajectory) -> None:
        """Add data that the estimator reads to a trajectory. Override it if two reward components are not enough."""
        reward = trajectory.reward or 0.0
        trajectory.info[REWARD_COMPONENTS] = {"correct": 0.75 * reward, "format": 0.25 * reward}

    def test_declared_columns_and_loss_exist(self) -> None:
        """An estimator can read every column that it needs, and its default loss is installed."""
        record = self.plugin
        for need in sorted(record.needs - COLUMNS):
            raise self.failure(
                f"needs {need!r}, which is not a column",
                f"{did_you_mean(need, COLUMNS)} Needs are columns of rllm_core.contracts.estimator.AdvantageInput.",
            )
        if record.default_loss is not None:
            try:
                Registry.load().get("loss", record.default_loss)
            except RllmError as error:
                fix = "Name an installed loss, or none."
                raise self.failure(f"has a default loss that is not installed: {error.message}", fix) from error

    def test_advantages_are_finite_at_the_declared_level(self, params: Any) -> None:
        for seed in SEEDS:
            self._tokens(params, self._groups(random_members(seed, RAGGED)), "ragged groups")

    def test_extreme_rewards_give_finite_advantages(self, params: Any) -> None:
        groups = [[Member(reward) for reward in rewards] for rewards in EXTREMES]
        self._tokens(params, self._groups(groups), "extreme and nearly equal rewards")
        for group in groups:
            self._tokens(params, self._groups([group]), f"one group with rewards {[member.reward for member in group]}")

    def test_smallest_batches_work(self, params: Any) -> None:
        nothing_said: tuple[tuple[int, int], ...] = ((2, 0),)
        for case, members in {
            "no group at all": [],
            "one group of one": [[Member(0.5)]],
            "several groups of one": [[Member(0.5)], [Member(1.0)]],
            "one sampled token": [[Member(1.0, ((1, 1),))]],
            "trajectories without a model call": [[Member(1.0, ()), Member(0.0, ())]],
            "trajectories that sampled nothing": [[Member(1.0, nothing_said), Member(0.0, nothing_said)]],
            "one trajectory of several that sampled nothing": [[Member(1.0), Member(0.5, nothing_said), Member(0.0)]],
        }.items():
            self._tokens(params, self._groups(members), case)

    def test_equal_rewards_give_zero_advantages(self, params: Any) -> None:
        if self.plugin.scope == "trajectory":
            pytest.skip("an advantage that depends only on its own trajectory has no center")
        sizes = range(2, 12)
        lengths = [((2, 1 + number % 3),) for number in range(max(sizes))]
        largest = {}
        for reward in CONSTANTS:
            members = [[Member(reward, lengths[number]) for number in range(size)] for size in sizes]
            values = self._call_for_groups(params, self._groups(members), "equal rewards").values
            largest[reward] = float(np.abs(values).max())
        if not self.centres and not any(largest.values()):
            raise self.failure(
                "gives advantages of 0 where all rewards are equal, but its test has `centres = False`",
                "Remove `centres = False` from the test.",
            )
        for reward, value in largest.items():
            if self.centres and value:
                raise self.failure(
                    f"gives advantages up to {value:.3g} where all rewards are {reward}",
                    "Compare the rewards themselves (max == min) and give exactly 0: a mean of equal numbers is not "
                    "always that number, and a division by a tiny deviation enlarges the remainder. "
                    "If it does not centre rewards, set `centres = False` in the test.",
                )

    def test_order_of_trajectories_and_groups_has_no_effect(self, params: Any) -> None:
        for seed in SEEDS:
            groups = self._groups(random_members(seed, RAGGED))
            random = np.random.default_rng(seed)
            shuffled = [_reorder(groups[place], random) for place in random.permutation(len(groups))]
            if (difference := self._difference(params, groups, shuffled)) > CLOSE:
                raise self.failure(
                    f"gives different advantages (by {difference:.2g} of the largest) when groups and members are "
                    "shuffled",
                    "Return values in the order of the inputs, and do not use positions.",
                )

    def test_declared_scope_is_exact(self) -> None:
        scope = self.plugin.scope
        if scope in ("role", "batch"):
            self._check_a_wide_scope_is_used(scope)
            return
        for params in map(self.params_from, self.options):
            for seed in SEEDS:
                self._check_nothing_beyond_the_scope_matters(params, scope, seed)

    def _check_nothing_beyond_the_scope_matters(self, params: Any, scope: str, seed: int) -> None:
        groups = self._groups(random_members(seed, RAGGED))
        together = self._tokens(params, groups, "ragged groups")
        parts = groups if scope == "group" else [part for group in groups for part in _split_members(group)]
        apart: dict[str, NDArray[np.float32]] = {}
        for part in parts:
            apart |= self._tokens(params, [part], f"only one {scope}")
        if (difference := distance(together, apart)) > CLOSE:
            raise self.failure(
                f"declares scope={scope!r}, but its advantages change (by {difference:.2g} of the largest) with the "
                f"rest of the batch",
                f"Declare a wider scope in the plugin spec, or use only the rewards of its own {scope}.",
            )

    def _check_a_wide_scope_is_used(self, scope: str) -> None:
        """The scope is exact for at least one of the `options`. A scope wider than a batch may be rejected."""
        few, more = [Member(1.0), Member(0.5, ((1, 4),))], [Member(8.0), Member(0.0), Member(0.0, ((2, 1),))]
        groups = self._groups([few, more, [Member(0.25), Member(0.0)]])
        for options in self.options:
            params = self.params_from(options)
            together = self._tokens(params, groups, "three groups")
            separate = self._tokens(params, groups[:1], "only one of three groups")
            if distance({uid: together[uid] for uid in separate}, separate) > CLOSE:
                return
        raise self.failure(
            f"declares scope={scope!r}, but under none of the tested options does anything outside a group change its "
            "advantages",
            "Declare scope='group', or add a mapping to `options` in the test that makes it use more than one group.",
        )

    def test_prompt_length_does_not_change_advantages(self, params: Any) -> None:
        """Longer prompts and observations do not change the advantages."""
        members = random_members(0, RAGGED)
        longer = [
            [Member(reward, tuple((observed + 3, sampled) for observed, sampled in turns)) for reward, turns in group]
            for group in members
        ]
        if (difference := self._difference(params, self._groups(members), self._groups(longer))) > CLOSE:
            raise self.failure(
                f"gives different advantages (by {difference:.2g} of the largest) when prompts are longer",
                "Count only tokens where `inputs.loss_mask` is True; `inputs.response_lengths` does.",
            )

    def test_it_does_not_change_its_inputs(self, params: Any) -> None:
        groups = self._groups(random_members(0, RAGGED))
        inputs = self._inputs(groups)
        before = _fingerprint(inputs)
        self._call(params, inputs, "ragged groups")
        for name, content in _fingerprint(inputs).items():
            if content != before[name]:
                raise self.failure(
                    f"changes its inputs: `{name}` differs after the call",
                    "Treat its inputs, including the trajectories in `inputs.groups`, as read-only.",
                )

    def test_same_inputs_and_state_give_same_advantages(self, params: Any) -> None:
        """The results do not depend on other calls in between, and are the same in a resumed run."""
        groups = self._groups(random_members(0, RAGGED))
        first = self._call_for_groups(params, groups, "ragged groups")
        self._call_for_groups(params, self._groups(random_members(1, RAGGED)), "other groups")
        if not np.array_equal(first.values, self._call_for_groups(params, groups, "ragged groups").values):
            raise self.failure(
                "gives different advantages when it is called again with the same inputs",
                "Keep no state between calls and draw no random numbers: an estimator is a function of its inputs. If "
                "it needs state, set `keeps_state=True` in its plugin spec.",
            )
        if self.plugin.keeps_state:
            self._check_a_resumed_run_continues_exactly(params)

    def _check_a_resumed_run_continues_exactly(self, params: Any) -> None:
        batches = [self._inputs(self._groups(random_members(seed, RAGGED))) for seed in SEEDS]
        whole, values, states = self._make_estimator(), [], []
        for batch in batches:
            values.append(self._call(params, batch, "one of several batches", whole).values)
            states.append(json.dumps(whole.state_dict()))
        for done, state in enumerate(states, start=1):
            resumed = self._make_estimator()
            resumed.load_state_dict(json.loads(state))
            rest = [self._call(params, batch, "a batch after a resume", resumed).values for batch in batches[done:]]
            if json.dumps(resumed.state_dict()) != states[-1] or not all(map(np.array_equal, rest, values[done:])):
                raise self.failure(
                    f"continues differently when it is resumed after batch {done}",
                    "Put everything that it keeps between steps into state_dict, and restore all of it in "
                    "load_state_dict.",
                )

    def _groups(self, members: Sequence[Sequence[Member]]) -> list[TrajectoryGroup]:
        """Groups of such trajectories, prepared."""
        groups = make_groups(members)
        for number, group in enumerate(groups):
            for trajectory in group.trajectories:
                self.prepare(trajectory)
                if "greedy_rewards" in self.plugin.needs:
                    trajectory.info[GREEDY_REWARD] = group.trajectories[0].reward if number % 2 else 0.5
        return groups

    def _inputs(self, groups: Sequence[TrajectoryGroup]) -> AdvantageInput:
        """Return the columns of these groups, with the columns in the plugin's `needs`."""
        # `build_estimator_input` selects groups of a batch, and a batch needs at least one group.
        batch = fill(build_batch(groups or self._groups([[Member(0.0)]])), self.plugin.needs)
        return build_estimator_input(batch, np.full(len(batch.groups), bool(groups)))

    def _call_for_groups(self, params: Any, groups: Sequence[TrajectoryGroup], case: str) -> Advantages:
        """Call the estimator for these groups and return its result."""
        return self._call(params, self._inputs(groups), case)

    def _make_estimator(self) -> Any:
        """Return the estimator to call. An estimator with state is a new object with empty state."""
        return self.load_plugin()() if self.plugin.keeps_state else self.load_plugin()

    def _call(self, params: Any, inputs: AdvantageInput, case: str, estimator: Any = None) -> Advantages:
        """Call the estimator, by default a new one, and return its result if it is valid. `case` describes the input in
        messages."""
        try:
            result: Advantages = (estimator or self._make_estimator())(inputs, params)
        except Exception as error:
            writes = "read-only" in str(error)
            raise self.failure(
                f"failed on {case}: {type(error).__name__}: {error}",
                "It writes into its inputs: work on a copy, such as `inputs.rewards.copy()`."
                if writes
                else "Such batches occur in training. Return an advantage for each trajectory.",
            ) from error
        try:
            to_tokens(inputs, result, f"{self.display_name}, given {case},", self.plugin.level)
        except RllmError as error:
            raise AssertionError(str(error)) from error
        self._check_returns(inputs, result)
        return result

    def _check_returns(self, inputs: AdvantageInput, result: Advantages) -> None:
        if result.returns is None:
            return
        returns = np.asarray(result.returns, np.float64)
        if returns.shape != inputs.loss_mask.shape or not np.isfinite(returns).all():
            raise self.failure(
                f"gives returns of shape {returns.shape} for {inputs.loss_mask.shape} tokens, or some that are not "
                "finite",
                "Returns are a critic's targets: one finite number for every token, 0 where nothing was sampled.",
            )

    def _tokens(self, params: Any, groups: Sequence[TrajectoryGroup], case: str) -> dict[str, NDArray[np.float32]]:
        """The advantages of the sampled tokens of each trajectory, by its uid."""
        inputs = self._inputs(groups)
        tokens = to_tokens(inputs, self._call(params, inputs, case), self.display_name, self.plugin.level)
        uids = [trajectory.uid for group in groups for trajectory in group.trajectories]
        parts = [slice(*bounds) for bounds in zip(inputs.token_offsets, inputs.token_offsets[1:], strict=False)]
        return {uid: tokens[part][inputs.loss_mask[part]] for uid, part in zip(uids, parts, strict=True)}

    def _difference(self, params: Any, one: Sequence[TrajectoryGroup], other: Sequence[TrajectoryGroup]) -> float:
        return distance(self._tokens(params, one, "ragged groups"), self._tokens(params, other, "ragged groups"))


def distance(one: dict[str, NDArray[np.float32]], other: dict[str, NDArray[np.float32]]) -> float:
    """The largest difference of two results for the same trajectories, relative to the largest advantage."""
    pairs = [(one[uid].astype(np.float64), other[uid]) for uid in one if one[uid].size]
    largest = max((np.abs(values).max() for pair in pairs for values in pair), default=0.0)
    return float(max((np.abs(a - b).max() for a, b in pairs), default=0.0) / (largest or 1.0))


def _reorder(group: TrajectoryGroup, random: np.random.Generator) -> TrajectoryGroup:
    order = random.permutation(len(group.trajectories))
    return TrajectoryGroup(
        group_id=group.group_id,
        trajectories=[group.trajectories[place] for place in order],
        metadata=[group.metadata[place] for place in order],
    )


def _split_members(group: TrajectoryGroup) -> list[TrajectoryGroup]:
    return [
        TrajectoryGroup(group_id=group.group_id, trajectories=[trajectory], metadata=[entry])
        for trajectory, entry in zip(group.trajectories, group.metadata, strict=True)
    ]


def _fingerprint(inputs: AdvantageInput) -> dict[str, bytes]:
    content = {
        name: column.tobytes() + str((column.dtype, column.shape, column.flags.writeable)).encode()
        for name, column in vars(inputs).items()
        if isinstance(column, np.ndarray)
    }
    return content | {"groups": json.dumps([codec.group_to_json(group) for group in inputs.groups]).encode()}
