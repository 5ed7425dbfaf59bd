"""Comparison of the sampler's weights with the trained weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from rllm_backend_kit.weight_comparison import find_differences
from rllm_core.contracts.weight_comparison import KnownFault, Probe, ScoringEngine, TensorDifference, WeightComparison
from rllm_local.engine import LocalEngine
from rllm_local.samplers import Sampler
from rllm_local.scoring import Scores, score_suspects, score_to_train, trained_digests

T = TypeVar("T")


class CallTrainer(Protocol):
    """Calls a module's function with the `Trainer` and arguments that can be pickled."""

    async def __call__(self, function: Callable[..., T], *arguments: object) -> T: ...


class LocalComparison(WeightComparison):
    """Compares the sampler with the trainer of the backend `local`, in one process or in two."""

    def __init__(self, call_trainer: CallTrainer, sampling: Sampler, model: Any, max_context: int) -> None:
        """`model` is the model of this process, `transformers.PreTrainedModel`."""
        # A hosted engine may store tensors in its own layout, and a GPU's tensors are copied to compute their digests.
        self._is_cheap = isinstance(sampling.latest, LocalEngine) and model.device.type == "cpu"
        self._call_trainer = call_trainer
        self._sampling = sampling
        self.vocabulary = model.get_input_embeddings().num_embeddings
        self.max_context = max_context
        self.layers = model.config.get_text_config().num_hidden_layers
        self.dtype = str(model.dtype).removeprefix("torch.")  # type: ignore[assignment]

    async def of_trainer(self, probe: Probe) -> Scores:
        return await self._call_trainer(score_to_train, probe)

    async def of_samplers(self, probe: Probe) -> Mapping[str, Scores]:
        return await self._engine.score(probe)

    async def of_suspects(self, probe: Probe) -> Mapping[KnownFault, Scores]:
        return await self._call_trainer(score_suspects, probe)

    async def different_tensors(self, sampler: str, *, is_suspect: bool) -> Sequence[TensorDifference] | None:
        if not (is_suspect or self._is_cheap):
            return None
        trained = await self._sampling.sent_digests(partial(self._call_trainer, trained_digests))
        own = await self._engine.digests(sampler) if trained else {}
        return find_differences(trained, own) if own else None

    @property
    def _engine(self) -> ScoringEngine:
        engine = self._sampling.latest
        assert engine is not None
        return engine
