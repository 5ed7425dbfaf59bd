"""The workflow `tree`: a rollout that forks into several leaves, which share their beginnings.

A leaf is a rollout that repeats the shared calls, and then samples its own calls.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rllm.builtin.tree_rollouts.branch import Branch, Fork, join_paths
from rllm_core.contracts.engine import Completion, EngineWrapper, RolloutEngine, SamplingParams
from rllm_core.contracts.workflow import Workflow, WorkflowContext
from rllm_core.data.types import Episode
from rllm_core.data.version_spans import VersionSpan
from rllm_core.errors import ConfigError
from rllm_core.rollout.options import AgentWorkflowParams
from rllm_core.rollout.workflows import MultiTurnWorkflow
from rllm_core.seeding import derive_seed


@dataclass(frozen=True, eq=False)
class Call:
    """A model call of a rollout, to be repeated in a continuation of this rollout."""

    prompt: NDArray[np.int32]
    """(n,) all tokens of the prompt."""
    earned: float
    """Reward of the rollout before the call."""
    completion: Completion
    is_open: bool = False
    """True if the completion has only the response's first tokens, and the continuation samples the rest."""


@dataclass(frozen=True)
class ForkRule:
    """The places at which a rollout forks. A place is chosen only by the tokens before it."""

    branches: int
    """Maximum number of continuations of a fork."""
    surprisal: float | None
    """Fork after a token whose negative log-prob, in nats, is at least this. If None, fork before each later turn."""

    def split(self, leaves: int) -> list[int]:
        """Return the maximum number of leaves of each continuation. The first ones get the remainder."""
        number = min(self.branches, leaves)
        return [leaves // number + (child < leaves % number) for child in range(number)]

    def places(self, completion: Completion, start: int) -> list[int]:
        """Return the numbers of tokens after which a response forks, if `start` tokens are from an earlier leaf."""
        if self.surprisal is None:
            return []
        surprising = np.flatnonzero(-completion.logprobs[start:-1] >= self.surprisal)
        return [start + int(place) + 1 for place in surprising]


@dataclass(frozen=True, kw_only=True, eq=False)
class Start:
    """The beginning of a leaf."""

    branch: Branch
    leaves: int
    """Maximum number of leaves that this leaf may become, by its own forks."""
    calls: tuple[Call, ...] = ()
    """The calls that it repeats."""


class Leaf(MultiTurnWorkflow):
    """A rollout in the run's environment that repeats the calls of its beginning without the engine.

    The environment and the agent are new, and receive the same responses again. A copy of an environment would share
    its processes, connections and files. Here only the prompts and rewards must be the same again, and this is checked.
    """

    def __init__(
        self, context: WorkflowContext, start: Start, rule: ForkRule, grow: Callable[[Start], None], **options: Any
    ) -> None:
        seed = context.sampling.seed
        own = seed if not start.calls else derive_seed(seed, "branch", repr(start.branch.forks))
        engine = _LeafEngine(context.engine, self)
        super().__init__(replace(context, engine=engine, sampling=context.sampling.with_seed(own)), **options)
        self.branch, self._leaves, self._start = start.branch, start.leaves, start.calls
        self._rule, self._grow = rule, grow
        self._calls: list[Call] = []
        self.sampled_calls = 0
        """Number of calls of the engine."""

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        """Run the leaf. Raises ConfigError if the environment did not repeat the beginning."""
        episode = await super().run(task, uid, **kwargs)
        if len(self._calls) < len(self._start):
            raise _not_repeatable(f"ended after {len(self._calls)} of {len(self._start)} repeated calls")
        return episode

    async def sample(
        self, engine: RolloutEngine, prompt: NDArray[np.int32], sampling: SamplingParams, session: str
    ) -> Completion:
        """Return the next response: repeated, sampled, or begun by an earlier leaf and continued."""
        assert self.episode is not None
        number, earned = len(self._calls), float(self.episode.trajectories[0].reward or 0.0)
        repeated = self._start[number] if number < len(self._start) else None
        if repeated is not None:
            _check_same_call(repeated, number, prompt, earned)
            if not repeated.is_open:
                self._calls.append(repeated)
                return repeated.completion
        elif number > len(self._start) and self._rule.surprisal is None:
            self._fork(Fork(number, 0, 0), self._calls)
        begun = None if repeated is None else repeated.completion
        kept = 0 if begun is None else len(begun.token_ids)
        self.sampled_calls += 1
        if begun is None:
            completion = await engine.generate(prompt, sampling, session=session)
        else:
            rest = replace(sampling, max_tokens=sampling.max_tokens - kept)
            longer = np.concatenate((prompt, begun.token_ids))
            completion = join(begun, await engine.generate(longer, rest, session=session))
        for place in self._rule.places(completion, kept):
            begun = first_tokens(completion, place)
            self._fork(Fork(number, place, 0), [*self._calls, Call(prompt, earned, begun, is_open=True)])
        self._calls.append(Call(prompt, earned, completion))
        return completion

    def _fork(self, place: Fork, calls: Sequence[Call]) -> None:
        """Start the other continuations of this place, and continue as the first one."""
        own, *others = self._rule.split(self._leaves)
        if not others:
            return
        tree, forks = self.branch.tree, self.branch.forks
        for child, leaves in enumerate(others, 1):
            branch = Branch(tree, (*forks, place._replace(child=child)))
            self._grow(Start(branch=branch, leaves=leaves, calls=tuple(calls)))
        self.branch, self._leaves = Branch(tree, (*forks, place)), own


class _LeafEngine(EngineWrapper):
    """The engine of one leaf."""

    def __init__(self, engine: RolloutEngine, leaf: Leaf) -> None:
        super().__init__(engine)
        self._leaf = leaf

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """Return the leaf's next response."""
        return await self._leaf.sample(self.inner, np.asarray(prompt_ids, np.int32), sampling, session)


def first_tokens(completion: Completion, number: int) -> Completion:
    """Return the first tokens of a completion, as if it had been cut off there."""
    versions = _version_of_each_token(completion)[:number]
    return _complete(completion.token_ids[:number], completion.logprobs[:number], versions, "length")


def join(begun: Completion, rest: Completion) -> Completion:
    """Return the completion whose first tokens are `begun`."""
    tokens = np.concatenate((begun.token_ids, rest.token_ids))
    logprobs = np.concatenate((begun.logprobs, rest.logprobs))
    versions = _version_of_each_token(begun) + _version_of_each_token(rest)
    return _complete(tokens, logprobs, versions, rest.finish_reason)


def _complete(tokens: Any, logprobs: Any, versions: list[int], finish_reason: Any) -> Completion:
    starts = [place for place in range(len(versions)) if not place or versions[place] != versions[place - 1]]
    ends = [*starts[1:], len(versions)]
    return Completion(
        token_ids=tokens,
        logprobs=logprobs,
        finish_reason=finish_reason,
        weight_version=min(versions),
        version_spans=tuple(VersionSpan(versions[start], end - start) for start, end in zip(starts, ends, strict=True)),
    )


def _version_of_each_token(completion: Completion) -> list[int]:
    spans = completion.version_spans or (VersionSpan(completion.weight_version, len(completion.token_ids)),)
    return [span.version for span in spans for _ in range(span.tokens)]


def _check_same_call(call: Call, number: int, prompt: NDArray[np.int32], earned: float) -> None:
    if not np.array_equal(call.prompt, prompt):
        raise _not_repeatable(f"gave a different prompt for call {number + 1}")
    if not np.array_equal(call.earned, earned, equal_nan=True):
        raise _not_repeatable(f"gave reward {earned:g} instead of {call.earned:g} before call {number + 1}")


def _not_repeatable(what: str) -> ConfigError:
    return ConfigError(
        "environment-not-repeatable",
        f"Workflow tree repeated the responses of a rollout, and the environment or the agent {what}.",
        "Derive random numbers of the environment from the task only, or set rllm.workflow.name=multi_turn_workflow.",
    )


class TreeParams(AgentWorkflowParams):
    """Options of the workflow ``tree``: its size and its forks."""

    leaves: int = Field(10, gt=0)
    """Maximum number of leaves of a tree. Each leaf is a trajectory."""
    branches: int = Field(2, gt=1)
    """Number of continuations of a fork, while the leaves last."""
    fork_surprisal: float | None = Field(None, gt=0)
    """Fork after a sampled token whose negative log-prob is at least this number of nats. null means: fork before each
    turn after the first."""


class TreeWorkflow(Workflow):
    """Workflow whose rollout is a tree. Each leaf is a trajectory with all tokens from the root.

    A continuation of a fork gets an equal share of the leaves that are left. A leaf that ends early does not use its
    share. So the shape of the tree depends on nothing but the tokens before each fork, and not on the order in which
    calls return.

    Only rollouts of training fork. A rollout of validation equals a rollout of `multi_turn_workflow`, with the same
    seeds and calls. The first leaf equals it too, and gives the episode its termination reason and `is_correct`.
    Metrics are means over leaves, weighted by their shares.
    """

    config_keys: ClassVar[frozenset[str]] = MultiTurnWorkflow.config_keys

    def __init__(
        self,
        context: WorkflowContext,
        *,
        leaves: int = 10,
        branches: int = 2,
        fork_surprisal: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(context)
        self._leaves = leaves if context.label == "train" else 1
        self._rule = ForkRule(branches, fork_surprisal)
        self._options = options
        self._grown: list[Leaf] = []

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        self.episode = episode = Episode(id=uid)
        running: list[asyncio.Task[Episode]] = []

        def grow(start: Start) -> None:
            leaf = Leaf(self.context, start, self._rule, grow, **self._options)
            self._grown.append(leaf)
            name = "/".join([uid, *("{}.{}.{}".format(*fork) for fork in start.branch.forks)])
            running.append(group.create_task(leaf.run(copy.deepcopy(task), name)))

        try:
            async with asyncio.TaskGroup() as group:
                grow(Start(branch=Branch(uid), leaves=self._leaves))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            self._finish(episode)
        if any(leaf.cancelled() for leaf in running):
            raise asyncio.CancelledError  # a leaf awaited a task that was cancelled
        return episode

    def _finish(self, episode: Episode) -> None:
        """Fill the episode with the leaves, depth first. This also happens after a timeout."""
        leaves = sorted((leaf for leaf in self._grown if leaf.episode), key=lambda leaf: leaf.branch.forks)
        ends = [leaf.episode for leaf in leaves if leaf.episode]
        if not ends:
            return
        episode.trajectories = [end.trajectories[0] for end in ends]
        for leaf, trajectory in zip(leaves, episode.trajectories, strict=True):
            leaf.branch.store_in(trajectory)
        episode.termination_reason, episode.is_correct = ends[0].termination_reason, ends[0].is_correct
        branches = [leaf.branch for leaf in leaves]
        shares = dict(join_paths(branches, range(len(branches))).leaf_shares())
        for name in {name: None for end in ends for name in end.metrics}:
            weights, numbers = np.array(
                [(shares[index], end.metrics[name]) for index, end in enumerate(ends) if name in end.metrics]
            ).T
            episode.metrics[name] = float(np.average(numbers, weights=weights))
        if self._leaves > 1:
            episode.metrics["leaves"] = float(len(leaves))
            episode.metrics["calls"] = float(sum(leaf.sampled_calls for leaf in leaves))
