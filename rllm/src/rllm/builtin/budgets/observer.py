"""The observer `budget`: it wraps the backend and the engine to count tokens."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rllm_core.contracts.backend import Backend, BackendWrapper, UpdatePlan, UpdateResult
from rllm_core.contracts.engine import Completion, EngineWrapper, RolloutEngine, SamplingParams
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.params import Params
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.data.batch import TokenBatch

MILLION = 1_000_000
SECONDS_PER_HOUR = 3600.0


class BudgetParams(Params):
    """Options of the observer `budget`, which are keys of `rllm.trainer` and `rllm.trainer.prices`."""

    max_hours: float | None = Field(None, gt=0)
    """Maximum number of hours."""
    max_tokens: int | None = Field(None, gt=0)
    """Maximum number of sampled and trained tokens."""
    max_cost: float | None = Field(None, gt=0)
    """Maximum cost."""
    sampled_per_million: float = Field(0.0, ge=0)
    """Price of a million sampled tokens."""
    trained_per_million: float = Field(0.0, ge=0)
    """Price of a million trained tokens."""
    per_hour: float = Field(0.0, ge=0)
    """Price of an hour."""


@dataclass
class Spent:
    """The part of a budget that a run has spent."""

    sampled_tokens: int = 0
    """Tokens of all finished model calls: of training and validation, and of rollouts that were tried again."""
    trained_tokens: int = 0
    """Tokens of the rows of all updates, prompts included."""
    hours: float = 0.0

    def cost(self, prices: BudgetParams) -> float:
        """Return the cost in the currency of the prices."""
        sampled = self.sampled_tokens / MILLION * prices.sampled_per_million
        return sampled + self.trained_tokens / MILLION * prices.trained_per_million + self.hours * prices.per_hour


class Budget(Observer):
    """Stops the run before its next step if a budget is spent. Checkpoints contain the spent part."""

    def __init__(self, params: BudgetParams) -> None:
        self._params = params
        self._spent = Spent()
        self._started = time.monotonic()

    def wrap_backend(self, backend: Backend, run: TrackedRun) -> Backend:
        return _CountingBackend(backend, self)

    def wrap_engine(self, engine: RolloutEngine, run: TrackedRun) -> RolloutEngine:
        return _CountingEngine(engine, self._spent)

    def state_dict(self) -> dict[str, Any]:
        return asdict(self.total())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._spent.sampled_tokens += state["sampled_tokens"]
        self._spent.trained_tokens += state["trained_tokens"]
        self._spent.hours += state["hours"]

    def total(self) -> Spent:
        """Return the part of the budget that this start and earlier starts have spent."""
        return replace(self._spent, hours=self._spent.hours + (time.monotonic() - self._started) / SECONDS_PER_HOUR)

    def stop_reason(self) -> str | None:
        """Return the first budget that is spent. None if none is spent."""
        spent = self.total()
        for key, used, limit in self._budgets(spent):
            if used >= limit:
                return (
                    f"its budget rllm.trainer.{key}={limit:,g} is spent ({used:,.4g} used). To continue, add --resume "
                    f"rllm.trainer.{key}=NUMBER with a larger number"
                )
        return None

    def count_update(self, batch: TokenBatch) -> dict[str, float]:
        """Add the tokens of an update, and return the metrics of the budget."""
        self._spent.trained_tokens += batch.tokens.size
        spent = self.total()
        metrics = {
            "budget/sampled_tokens": float(spent.sampled_tokens),
            "budget/trained_tokens": float(spent.trained_tokens),
        }
        cost = spent.cost(self._params)
        return metrics | ({"budget/cost": cost} if cost else {})

    def _budgets(self, spent: Spent) -> Iterator[tuple[str, float, float]]:
        params = self._params
        if params.max_hours is not None:
            yield "max_hours", spent.hours, params.max_hours
        if params.max_tokens is not None:
            yield "max_tokens", spent.sampled_tokens + spent.trained_tokens, params.max_tokens
        if params.max_cost is not None:
            yield "max_cost", spent.cost(params), params.max_cost


class _CountingBackend(BackendWrapper):
    """A backend whose trained tokens are counted."""

    def __init__(self, backend: Backend, budget: Budget) -> None:
        super().__init__(backend)
        self._budget = budget

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        """Update the weights, and add the metrics of the budget."""
        result = await super().update(batch, plan)
        return replace(result, metrics={**result.metrics, **self._budget.count_update(batch)})


class _CountingEngine(EngineWrapper):
    """An engine whose sampled tokens are counted."""

    def __init__(self, engine: RolloutEngine, spent: Spent) -> None:
        super().__init__(engine)
        self._spent = spent

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """Call the inner engine, and count the tokens of the response."""
        completion = await self.inner.generate(prompt_ids, sampling, session=session)
        self._spent.sampled_tokens += len(completion.token_ids)
        return completion
