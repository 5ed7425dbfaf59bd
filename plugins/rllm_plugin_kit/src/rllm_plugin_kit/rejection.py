"""The contract of rejection modes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice, repeat
from typing import Any

import numpy as np

from rllm_core.contracts.rejection import RejectionMode, RejectionPlugin, RejectionResult
from rllm_core.data import codec
from rllm_core.data.types import TrajectoryGroup
from rllm_core.pipeline import describe_misplaced_group
from rllm_plugin_kit.plugin import PluginContract
from rllm_plugin_kit.samples import Member, make_groups

SEEDS = range(3)
STEPS = 8
MOST_BATCHES = 2_000
"""Maximum rollout batches of one step. A mode that requests more would never let the step end."""
REWARDS: Sequence[Sequence[float]] = (
    (1.0, 0.0, 0.5),
    (1.0, 1.0),
    (0.0, 0.0, 0.0),
    (1.0,),
    (0.0,),
    (-1.0, -1.0),
    (1.0, 0.0),
)


@dataclass
class _RejectionRun:
    """A mode that receives groups as in training, and its results."""

    mode: RejectionMode
    ask: Callable[[RejectionMode, list[TrajectoryGroup]], RejectionResult]
    offers: Iterator[list[TrajectoryGroup]]
    said: list[str] = field(default_factory=list)
    """One line of JSON per result: the groups to train on, keep and drop, and whether the mode requests more groups."""

    def step(self) -> RejectionResult:
        """Offer groups while the mode requests more."""
        for _ in range(MOST_BATCHES):
            result = self.ask(self.mode, next(self.offers))
            dropped = {reason: _serialize_groups(groups) for reason, groups in result.dropped.items()}
            self.said.append(
                json.dumps([_serialize_groups(result.train), _serialize_groups(result.waiting), dropped, result.more])
            )
            if not result.more:
                return result
        raise TimeoutError


class RejectionContract(PluginContract[RejectionPlugin[Any]]):
    """Contract of every rejection mode."""

    kind = "rejection"

    def test_each_group_has_exactly_one_verdict(self, params: Any) -> None:
        for seed in SEEDS:
            mode, waiting = self._mode(params), list[TrajectoryGroup]()
            seen: dict[str, str] = {}
            for groups in islice(_offers(seed), 5 * STEPS):
                seen |= {group.group_id: _serialize_groups([group]) for group in groups}
                offered = list(groups)
                result = self._ask(mode, groups)
                if problem := describe_misplaced_group(result, [*offered, *waiting]):
                    raise self.failure(
                        f"was offered {len(offered)} groups while {len(waiting)} were waiting, and {problem}",
                        "Put every group, the same object, into one of train, waiting and dropped (by reason); forget "
                        "groups that waited once they are in a different list.",
                    )
                if result.more and result.train:
                    raise self.failure(
                        "requests more groups and returns some to train on", "Keep them waiting until there are enough."
                    )
                waiting = list(result.waiting)
                for group in result.train:
                    if seen[group.group_id] != _serialize_groups([group]):
                        raise self.failure(f"returns group {group.group_id!r} changed", "Return the groups unchanged.")

    def test_step_without_groups_works(self, params: Any) -> None:
        mode = self._mode(params)
        self._ask(mode, [])
        for groups in islice(_offers(0), STEPS):
            self._ask(mode, groups)
        self._ask(mode, [])

    def test_batches_per_step_are_bounded(self, params: Any) -> None:
        without_signal = make_groups([[Member(0.0), Member(0.0)]])
        for groups in ([], without_signal):
            try:
                _RejectionRun(self._mode(params), self._ask, map(list, repeat(groups))).step()
            except TimeoutError:
                raise self.failure(
                    f"still requests more after {MOST_BATCHES} rollout batches without signal in one step",
                    "Limit the rollout batches of a step with an option, as `max_gen_batches` does.",
                ) from None

    def test_a_resumed_run_continues_exactly(self, params: Any) -> None:
        for seed in SEEDS:
            whole = _RejectionRun(self._mode(params), self._ask, _offers(seed))
            marks = []
            for _ in range(STEPS):
                whole.step()
                marks.append((len(whole.said), self.saved_state(whole.mode)))
            for number, (done, state) in enumerate(marks):
                fresh = self._mode(params)
                fresh.load_state_dict(json.loads(state))
                resumed = _RejectionRun(fresh, self._ask, _offers(seed, done))
                for _ in range(number + 1, STEPS):
                    resumed.step()
                if resumed.said != whole.said[done:]:
                    raise self.failure(
                        f"continues differently when it is resumed after step {number}",
                        "Put everything that it keeps between steps into state_dict (groups with "
                        "rllm_core.data.codec.group_to_json), and take all of it up in load_state_dict.",
                    )

    def test_same_groups_give_same_verdicts(self, params: Any) -> None:
        runs = [_RejectionRun(self._mode(params), self._ask, _offers(0)) for _ in range(2)]
        for _ in range(STEPS):
            for run in runs:
                run.step()
        if runs[0].said != runs[1].said:
            raise self.failure(
                "decides differently about the same groups in a second run",
                "Keep state in the mode made by the factory, never in its class or module, and seed what is random.",
            )

    def test_it_does_not_change_groups(self, params: Any) -> None:
        mode = self._mode(params)
        for groups in islice(_offers(0), STEPS):
            before, listed = _serialize_groups(groups), list(groups)
            self._ask(mode, groups)
            if groups != listed or _serialize_groups(listed) != before:
                raise self.failure(
                    "changes the groups it is offered, or the list they come in",
                    "Make lists of your own; leave rewards, trajectories and metadata as they are.",
                )

    def _mode(self, params: Any) -> RejectionMode:
        mode: RejectionMode = self.make(params, called_with="the options, once per run")
        for method in ("__call__", "state_dict", "load_state_dict"):
            if not callable(getattr(mode, method, None)):
                raise self.failure(
                    f"makes {mode!r:.80}, which has no {method}",
                    "See rllm_core.contracts.rejection.RejectionMode for its three methods.",
                )
        return mode

    def _ask(self, mode: RejectionMode, groups: list[TrajectoryGroup]) -> RejectionResult:
        with self.explain_errors(
            f"failed on {len(groups)} groups", "No groups at all, groups of one and groups of equal rewards do occur."
        ):
            result = mode(groups)
        if not isinstance(result, RejectionResult):
            raise self.failure(f"returned {result!r:.80}", "Return a rllm_core.contracts.rejection.RejectionResult.")
        return result


def _offers(seed: int, first: int = 0) -> Iterator[list[TrajectoryGroup]]:
    """Yield the groups of each rollout batch: none to five, with and without differing rewards, and groups of one."""
    for number in count(first):
        random = np.random.default_rng([seed, number])
        chosen = random.integers(len(REWARDS), size=random.integers(6))
        members = [[Member(reward) for reward in REWARDS[kind]] for kind in chosen]
        yield make_groups(members, prefix=f"batch-{number}")


def _serialize_groups(groups: Sequence[TrajectoryGroup]) -> str:
    return json.dumps([codec.group_to_json(group) for group in groups])
