"""A started backend under test, with methods for samples, updates and checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.backend import Backend, RunContext, UpdatePlan, UpdateResult
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.engine import Completion, RolloutEngine, SamplingParams
from rllm_core.contracts.loss import LossPlugin
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_plugin_kit.started import StartedSession

PROMPTS = ("one plus one is", "guess a number", "lower or higher?", "say a word")
REQUESTS = tuple((prompt, seed) for prompt in PROMPTS for seed in range(4))
"""Prompts with seeds."""
MAX_TOKENS = 6
ROLE = "agent"


class BackendSession(StartedSession):
    """One backend from start to close."""

    def __init__(self, make: type[Backend], run: RunContext, loss: PluginChoice[LossPlugin[Any]]) -> None:
        self.backend = make()
        super().__init__(self.backend)
        self._make = make
        self._run = run
        self._loss = loss
        self.updates = 0
        try:
            self.engine: RolloutEngine = self.ask(self.backend.start(run))
        except BaseException:
            self._loop.close()
            raise

    def start_copy(self) -> BackendSession:
        """Start a second backend with the same arguments."""
        return BackendSession(self._make, self._run, self._loss)

    def sample(self, requests: Sequence[tuple[str, int]], **sampling: Any) -> list[Completion]:
        """Return concurrent completions of prompts with seeds. `sampling` are fields of `SamplingParams`."""

        async def all_of_them() -> list[Completion]:
            return list(await asyncio.gather(*(self._complete(prompt, seed, sampling) for prompt, seed in requests)))

        return self.ask(all_of_them())

    def batch(self, **sampling: Any) -> TokenBatch:
        """Sampled completions as a training batch; see `sample`."""
        trajectories = []
        for (prompt, _), completion in zip(REQUESTS, self.sample(REQUESTS, **sampling), strict=True):
            trajectory = Trajectory(ROLE, reward=0.0)
            trajectory.add_step(
                self.encode(prompt),
                completion.token_ids,
                completion.logprobs,
                weight_version=completion.weight_version,
                version_spans=completion.version_spans,
            )
            trajectories.append(trajectory)
        return build_batch([TrajectoryGroup(group_id=f"task:{ROLE}", trajectories=trajectories)])

    def old_logprobs(self, batch: TokenBatch, *, unknown: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return (n_token,) old log-probs of a batch without sampling log-probs where `unknown`, (n_token,) bool."""
        told = batch.with_columns(sampling_logprobs=np.where(unknown, np.float32(np.nan), batch.sampling_logprobs))
        old = self.ask(self.backend.process(told, frozenset({"old_logprobs"}))).old_logprobs
        assert old is not None
        return old

    def update(self, *, advantage: float, **asked: Any) -> UpdateResult:
        """Make one update and sync the weights. Every other trajectory has this advantage, the others its negative.

        `asked` are further fields of `UpdatePlan`. `trained` is the batch.
        """
        batch = self.ask(self.backend.process(self.batch(), frozenset({"old_logprobs"})))
        signs = np.repeat(np.where(np.arange(batch.n_rows) % 2, -1.0, 1.0), batch.row_lengths)
        batch = batch.with_columns(advantages=(advantage * signs * batch.loss_mask).astype(np.float32))
        plan = UpdatePlan(
            global_step=self.updates,
            losses={ROLE: self._loss},
            aggregation="token-mean",
            entropy_coeff=0.0,
            seed=self.updates,
            **asked,
        )
        result = self.ask(self.backend.update(batch, plan))
        self.trained = batch
        self.updates += 1
        self.ask(self.backend.sync_weights(self.updates))
        return result

    def load_checkpoint(self, directory: Path, updates: int) -> None:
        """Load a checkpoint that was written after so many updates."""
        self.ask(self.backend.load(directory))
        self.updates = updates
        self.ask(self.backend.sync_weights(updates))

    async def _complete(self, prompt: str, seed: int, sampling: Mapping[str, Any]) -> Completion:
        session = f"{prompt}/{seed}"
        params = SamplingParams(**{"max_tokens": MAX_TOKENS, "seed": seed, **sampling})
        try:
            return await self.engine.generate(self.encode(prompt), params, session=session)
        finally:
            await self.engine.end_session(session)

    def encode(self, prompt: str) -> Any:
        """Return the tokens of a user message."""
        return self.engine.renderer.prompt([{"role": "user", "content": prompt}])


def difference(one: Sequence[Completion], other: Sequence[Completion]) -> float:
    """How far apart two policies are: the largest difference of log-probs, infinite where they sampled otherwise."""
    largest = 0.0
    for a, b in zip(one, other, strict=True):
        if a.token_ids.tolist() != b.token_ids.tolist():
            return float("inf")
        largest = max(largest, float(np.abs(a.logprobs - b.logprobs).max(initial=0.0)))
    return largest
