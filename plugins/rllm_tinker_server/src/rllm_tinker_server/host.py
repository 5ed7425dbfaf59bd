"""The models of a server: one base model and the LoRA models on it.

This module only computes. One thread calls the training methods. A second thread calls the sampling methods:
`merge_weights`, `score`, `different_tensors` and `score_suspects`. The two threads share constant tensors and copies of
weights, but no module tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import DynamicCache

from rllm_core.contracts.weight_comparison import KnownFault
from rllm_core.errors import ConfigError
from rllm_local.forward import cache_argument
from rllm_local.model import LoadedModel
from rllm_local.weights import fingerprint
from rllm_tinker_server import checkpoint_files
from rllm_tinker_server.checkpoint_files import BaseWeights
from rllm_tinker_server.learner import MAX_LOGITS, Learner
from rllm_tinker_server.lora import (
    AdapterWeights,
    LoraModel,
    copy_modules,
    different_tensors,
    faulty_copies,
    merged_copy,
)
from rllm_tinker_server.messages import (
    AdamStep,
    BaseModelInfo,
    ForwardBackward,
    ForwardBackwardResult,
    LoraSpec,
    RequestError,
    Scores,
    ScoreSettings,
    TopTokens,
)


@torch.inference_mode()
def score(model: Any, given: NDArray[np.int32], settings: ScoreSettings, max_positions: int) -> Scores:
    """The log-prob of each token after those before it, and of other tokens in its place.

    Args:
        model: a Hugging Face causal model.
        given: (n,) tokens.
        settings: which other tokens.
        max_positions: how many to compute at once; each costs a vocabulary of logits.
    """
    tokens = torch.from_numpy(given.astype(np.int64)).to(model.device)
    targets = None if settings.targets is None else torch.from_numpy(settings.targets).to(model.device)
    cache = DynamicCache(config=model.config)
    generator = torch.Generator(model.device).manual_seed(settings.seed) if settings.draws else None
    found = [torch.full((1,), torch.nan)]
    best = _Table([torch.zeros((1, settings.top), dtype=torch.int64)], [torch.full((1, settings.top), torch.nan)])
    scored = _Table.empty(0 if targets is None else targets.shape[1])
    drawn = _Table.empty(settings.draws)
    for start in range(0, len(given) - 1, max_positions):
        part = tokens[start : min(start + max_positions, len(given) - 1)]
        logits = model(input_ids=part[None], use_cache=True, **{cache_argument(model): cache}).logits[0].float()
        logprobs = torch.log_softmax(logits / settings.temperature, dim=-1)
        following = tokens[start + 1 : start + 1 + len(part), None]
        found.append(logprobs.gather(-1, following)[:, 0].cpu())
        best.add(logprobs, logprobs.topk(settings.top).indices)
        if targets is not None:
            scored.add(logprobs, targets[start : start + len(part)])
        if generator is not None:
            drawn.add(logprobs, _draw(logits, settings, generator))
    return Scores(
        logprobs=torch.cat(found).numpy(),
        top=best.concatenate() if settings.top else None,
        targets=None if targets is None else scored.concatenate().logprobs,
        draws=drawn.concatenate() if settings.draws else None,
    )


@dataclass(frozen=True)
class _Table:
    """Tokens and their log-probs, part after part of the positions."""

    tokens: list[Tensor]
    logprobs: list[Tensor]

    @classmethod
    def empty(cls, columns: int) -> _Table:
        """Return a table without positions."""
        return cls([torch.zeros((0, columns), dtype=torch.int64)], [torch.zeros((0, columns))])

    def add(self, logprobs: Tensor, tokens: Tensor) -> None:
        """Look up the log-probs of `tokens`, (n_position, k). A token of -1 gets 0."""
        values = logprobs.gather(-1, tokens.clamp(min=0)).masked_fill(tokens < 0, 0.0)
        self.tokens.append(tokens.cpu())
        self.logprobs.append(values.cpu())

    def concatenate(self) -> TopTokens:
        tokens, logprobs = torch.cat(self.tokens), torch.cat(self.logprobs)
        return TopTokens(tokens=tokens.to(torch.int32).numpy(), logprobs=logprobs.numpy())


def _draw(logits: Tensor, settings: ScoreSettings, generator: torch.Generator) -> Tensor:
    """Draw tokens for each position, (n_position, draws)."""
    if settings.draw_temperature == 0:
        return logits.argmax(dim=-1, keepdim=True).expand(-1, settings.draws)
    probabilities = torch.softmax(logits / settings.draw_temperature, dim=-1)
    return torch.multinomial(probabilities, settings.draws, replacement=True, generator=generator)


class Host:
    """Trains LoRA models and hands out their weights. Called on one thread, but for the module's sampling methods."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        name: str,
        tokenizer: str,
        seed: int = 0,
        max_context: int | None = None,
        max_tokens_per_microbatch: int = 16384,
    ) -> None:
        """Take over a model; its weights are frozen, and never change.

        Args:
            loaded: the base model.
            name: what clients call it.
            tokenizer: what clients can load its tokenizer by.
            seed: of the weights, where the model is `tiny`.
            max_context: most tokens of a conversation and of an example; None: as many as the model takes.
            max_tokens_per_microbatch: padded tokens per forward and backward pass.

        Raises:
            ConfigError: the model takes fewer tokens than `max_context`.
        """
        if max_context is not None and not 1 < max_context <= loaded.max_context:
            raise ConfigError(
                "context-too-long",
                f"The requested context has {max_context} tokens, but {name} supports 2 to {loaded.max_context}.",
                "Set a smaller --max-context, or remove it to use the model's own limit.",
            )
        self.model: Any = loaded.model.requires_grad_(False).eval()
        # A pass that samples sets its model's attention for a while: trees that are copied meanwhile would keep it.
        self._sampled = copy_modules(self.model)
        self.tokenizer: Any = loaded.tokenizer
        self.stop_ids = loaded.stop_ids
        self.base = BaseModelInfo(
            name=name,
            tokenizer=tokenizer,
            max_context=max_context or loaded.max_context,
            vocabulary=int(self.model.get_input_embeddings().num_embeddings),
            layers=int(self.model.config.get_text_config().num_hidden_layers),
            dtype=str(self.model.dtype).removeprefix("torch."),  # type: ignore[arg-type]
        )
        self._max_tokens = max_tokens_per_microbatch
        self._seed = seed
        self._learners: dict[str, Learner] = {}

    def create(self, model_id: str, spec: LoraSpec) -> None:
        """Make a LoRA model. Raises RequestError: the id is taken, or there can be no such model."""
        if model_id in self._learners:
            raise RequestError(f"There is a LoRA model {model_id!r} already.")
        self._learners[model_id] = self._learner(spec)

    def forward_backward(self, model_id: str, request: ForwardBackward) -> ForwardBackwardResult:
        """See `Learner.forward_backward`. Only one model at a time stores a forward pass."""
        learner = self._find(model_id)
        for each in self._learners.values():
            if each is not learner:
                each.drop_pass()
        return learner.forward_backward(request)

    def optim_step(self, model_id: str, step: AdamStep) -> dict[str, float]:
        """Make an optimizer step; see `Learner.optim_step`."""
        return self._find(model_id).optim_step(step)

    def save_state(self, model_id: str, directory: Path, *, optimizer: bool) -> None:
        """Write the model into an existing empty directory, without the gradient of a step that is still to come.

        Raises:
            OSError: it cannot be written.
            RequestError: a weight is infinite or NaN.
        """
        learner = self._find(model_id)
        learner.adam.require_finite_weights()
        state = learner.adam.state() if optimizer else None
        checkpoint_files.write(directory, self._base_weights, learner.lora, state)

    def load_state(self, model_id: str, directory: Path, *, optimizer: bool) -> None:
        """Put back what `save_state` wrote; a LoRA model that does not exist is made from it.

        Raises:
            RequestError: the directory is damaged, or of a base model with other weights. Nothing has changed then.
        """
        saved = checkpoint_files.read(directory, self._base_weights)
        learner = self._learners.get(model_id) or self._learner(saved.spec)
        learner.restore(saved, optimizer=optimizer, what=directory.name)
        self._learners[model_id] = learner

    def weights(self, model_id: str) -> AdapterWeights:
        """A copy of the model's weights that later steps do not change."""
        return self._find(model_id).lora.weights()

    def load_weights(self, directory: Path) -> AdapterWeights:
        """The weights in a directory that `save_state` wrote.

        Raises:
            RequestError: the directory is damaged, or of a base model with other weights.
        """
        saved = checkpoint_files.read(directory, self._base_weights)
        checkpoint_files.check_fits(saved, LoraModel(self.model, saved.spec), directory.name)
        return saved.weights

    def release(self, model_id: str) -> None:
        """Forget a LoRA model. Unknown ids are fine."""
        self._learners.pop(model_id, None)

    def merge_weights(self, weights: AdapterWeights | None) -> Any:
        """A plain model to sample from; None: the base model."""
        return self._sampled if weights is None else merged_copy(self.model, weights)

    def score(self, model: Any, given: NDArray[np.int32], settings: ScoreSettings) -> Scores:
        """See the function `score`; `model` is one of `merge_weights`."""
        most = max(1, min(self._max_tokens, MAX_LOGITS // self.base.vocabulary))
        return score(model, given, settings, most)

    def different_tensors(
        self, model: Any, sent: AdapterWeights | None, trained: AdapterWeights
    ) -> dict[str, str | None]:
        """Return the different tensors of `model`, which comes from `merge_weights`. See the function."""
        return different_tensors(model, self.model, sent, trained)

    def score_suspects(
        self, weights: AdapterWeights, rows: Sequence[NDArray[np.int32]]
    ) -> dict[KnownFault, list[NDArray[np.float32]]]:
        """Return the log-probs of all tokens but each row's first, with each fault that gives finite numbers."""
        found = {
            fault: [self.score(model, row, ScoreSettings()).logprobs[1:] for row in rows]
            for fault, model in faulty_copies(self.model, weights)
        }
        return {fault: scores for fault, scores in found.items() if np.isfinite(np.concatenate(scores)).all()}

    @cached_property
    def _base_weights(self) -> BaseWeights:
        """Told apart when it first matters: a large model's fingerprint takes seconds."""
        return BaseWeights(self.base.name, fingerprint(self.model), self._seed, self.base.dtype)

    def _learner(self, spec: LoraSpec) -> Learner:
        return Learner(LoraModel(self.model, spec), self.base, max_tokens_per_microbatch=self._max_tokens)

    def _find(self, model_id: str) -> Learner:
        learner = self._learners.get(model_id)
        if learner is None:
            raise RequestError(f"There is no LoRA model {model_id!r} here. It was released, or never created.")
        return learner
