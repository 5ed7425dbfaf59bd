"""The observer `weight_check`: it wraps the backend, and checks each sampler's weights after weight syncs."""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from rllm.builtin.weight_check.verdicts import Check, Judge, Scores, Verdict
from rllm_core.contracts.backend import Backend, BackendWrapper, RunContext, UpdatePlan, UpdateResult
from rllm_core.contracts.engine import RolloutEngine
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.params import Params
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.contracts.weight_comparison import Probe, WeightComparison
from rllm_core.data.batch import TokenBatch
from rllm_core.notices import say, warn_once


class WeightCheckParams(Params):
    """Options of the observer `weight_check`."""

    on_difference: Literal["stop", "warn"] = "stop"
    """Stop the run with an error, or warn and continue, if a sampler has other weights."""
    every: int | None = Field(None, ge=1)
    """Check each weight version that is a multiple of this number. null: check versions 0 and 1, and then check so
    rarely that checks cost at most about 1 % of the compute."""


ROWS, PROMPT, FORCED = 2, 8, 64
"""Size of the probe: its number of rows, and a row's numbers of prompt tokens and of scored tokens."""
KEPT = 64
"""Number of checks whose scores are kept."""
TOKENS_PER_PROBE_TOKEN = 50
"""Minimum number of trained tokens between two checks, per token of the probe. A check costs two forward passes over
the probe. A trained token costs four: one to sample, one to train, and a backward pass, which costs two. So a check
costs at most 1 %."""
WARN = "'rllm.trainer.observers=[{name: weight_check, on_difference: warn}]'"


class WeightCheck(Observer):
    """Checks that each sampler has the trained weights, and stops the run if a sampler has other weights."""

    def __init__(self, params: WeightCheckParams) -> None:
        self._params = params
        self._judge: Judge | None = None
        self._history: deque[Check] = deque(maxlen=KEPT)
        self._tokens = 0
        """Number of trained tokens since the last check."""
        self._metrics: dict[str, float] = {}
        """Metrics of the last check. The next update reports them."""
        self._has_reported = False
        self._warned: set[tuple[str, type[Verdict]]] = set()
        """Samplers and their verdicts that were reported as a warning."""

    def wrap_backend(self, backend: Backend, run: TrackedRun) -> Backend:
        return CheckingBackend(backend, self)

    def state_dict(self) -> dict[str, Any]:
        history = [
            [each.version, _encode(each.trainer), {name: _encode(own) for name, own in each.samplers.items()}]
            for each in self._history
        ]
        return {"history": history, "tokens": self._tokens, "metrics": self._metrics}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._history.clear()
        for version, trainer, samplers in state["history"]:
            scores = {name: _decode(own) for name, own in samplers.items()}
            self._history.append(Check(version, _decode(trainer), scores))
        self._tokens, self._metrics = state["tokens"], state["metrics"]

    async def start(self, comparison: WeightComparison | None) -> None:
        """Check weight version 0."""
        length = 0 if comparison is None else min(PROMPT + FORCED, comparison.max_context)
        if comparison is None or length < 2:
            say("The sampler's weights are not checked, because the backend or its engine cannot compare weights.")
            return
        self._judge = Judge(comparison, make_probe(comparison.vocabulary, length), self._history)
        await self.sync(0)

    def count(self, batch: TokenBatch) -> None:
        """Count the tokens of an update."""
        self._tokens += int(batch.loss_mask.sum())

    async def sync(self, version: int) -> None:
        """Check the weights after a weight sync, if a check is due.

        Raises:
            BackendError: a sampler has other weights than the trained weights.
        """
        if self._judge is None or not self._is_due(version, self._judge.probe):
            return
        checked, verdicts = await self._check(self._judge, version)
        if not verdicts:
            return
        self._history.append(checked)
        self._tokens = 0
        worst = max(each.number for each in verdicts)
        largest = max(each.difference for each in verdicts)
        metrics = {"weights/verdict": float(worst), "weights/largest_difference": largest}
        self._metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}

    async def restore(self, version: int) -> None:
        """Check the weights of a checkpoint. Later checks are the same as in a run without an interruption.

        Raises:
            BackendError: a sampler has other weights than the trained weights.
        """
        if self._judge is not None:
            await self._check(self._judge, version)

    def take_metrics(self) -> dict[str, float]:
        """Return the metrics of the last check. Empty if an earlier call returned them."""
        metrics, self._metrics = self._metrics, {}
        return metrics

    def _is_due(self, version: int, probe: Probe) -> bool:
        if self._params.every is not None:
            return version % self._params.every == 0
        return version <= 1 or self._tokens >= TOKENS_PER_PROBE_TOKEN * probe.tokens.size

    async def _check(self, judge: Judge, version: int) -> tuple[Check, list[Verdict]]:
        """Return the scores and the verdicts about all samplers. No verdicts if the trainer's scores are not finite."""
        comparison, probe = judge.comparison, judge.probe
        trainer = await comparison.of_trainer(probe)
        checked = Check(version, trainer, await comparison.of_samplers(probe))
        verdicts = []
        for sampler in checked.samplers if np.isfinite(trainer).all() else ():
            verdict = await judge.judge(checked, sampler)
            self._react(verdict, sampler, version)
            verdicts.append(verdict)
        return checked, verdicts

    def _react(self, verdict: Verdict, sampler: str, version: int) -> None:
        error = verdict.error(sampler, version, f"To continue with a warning, set {WARN}.")
        if error is not None and self._params.on_difference == "stop":
            raise error
        if error is not None:
            if (key := (sampler, type(verdict))) not in self._warned:
                warn_once(error.message)
            self._warned.add(key)
        elif not self._has_reported:
            result = f"log-probs are {verdict.text}, largest difference {verdict.difference:.2g}"
            say(f"Checked that {sampler} has the trained weights: {result}.")
        self._has_reported = True


class CheckingBackend(BackendWrapper):
    """A backend whose weight syncs are checked."""

    def __init__(self, backend: Backend, check: WeightCheck) -> None:
        super().__init__(backend)
        self._check = check
        self._is_restored = False

    async def start(self, run: RunContext) -> RolloutEngine:
        """Start the backend, and check its first weights."""
        engine = await super().start(run)
        await self._check.start(self.weight_comparison())
        return engine

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        """Update the weights. The metrics of the last check are added to the result."""
        result = await super().update(batch, plan)
        self._check.count(batch)
        return replace(result, metrics={**result.metrics, **self._check.take_metrics()})

    async def sync_weights(self, version: int) -> None:
        """Sync the weights, and check them."""
        await super().sync_weights(version)
        if self._is_restored:
            self._is_restored = False
            await self._check.restore(version)
        else:
            await self._check.sync(version)

    async def load(self, directory: Path) -> None:
        """Restore the state. The next weight sync has the checkpoint's weights."""
        await super().load(directory)
        self._is_restored = True


def make_probe(vocabulary: int, length: int) -> Probe:
    """Return rows of fixed pseudo-random tokens, the same in all runs of models with this vocabulary."""
    tokens = np.random.default_rng(0).integers(vocabulary, size=(ROWS, PROMPT + FORCED), dtype=np.int32)
    return Probe(tokens=tokens[:, :length], prompt=min(PROMPT, length - 1))


def _encode(scores: Scores) -> str:
    return b64encode(scores.astype("<f4").tobytes()).decode()


def _decode(text: str) -> Scores:
    return np.frombuffer(b64decode(text), "<f4").astype(np.float32)
