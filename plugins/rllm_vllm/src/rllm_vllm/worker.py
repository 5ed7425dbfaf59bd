"""Code in vLLM's workers: load weights, record log-probs before truncation, and constrain responses to a JSON schema.

The log-probs come from softmax(logits / temperature), before top-k and top-p remove tokens. vLLM has no mode for this:
``raw_logprobs`` are from before the temperature is applied, and ``processed_logprobs`` are from after top-k and
top-p. Constraints are applied after the log-probs are computed. vLLM's own structured output removes tokens before its
sampler gets the logits.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_backend_kit.grammars import Grammar, Grammars
from rllm_backend_kit.weight_comparison import vllm_digests
from rllm_vllm.messages import SCHEMA, Marks


class RllmWorker:
    """Methods that vLLM adds to its worker class (``worker_extension_cls``)."""

    model_runner: Any
    vllm_config: Any

    def rllm_prepare(self) -> bool:
        """Record log-probs as the engine contract requires. See `record_before_truncation`."""
        return record_before_truncation(self.model_runner)

    def rllm_constrain(self, stop_ids: Sequence[int], reasoning_ids: Sequence[int] | None) -> bool:
        """Constrain responses to JSON schemas. See `constrain`. The arguments are the fields of `Marks`."""
        reasoning = None if reasoning_ids is None else (reasoning_ids[0], reasoning_ids[1])
        marks = Marks(tuple(stop_ids), reasoning)
        return constrain(self.model_runner, marks.load_grammars(self.vllm_config.model_config))

    def rllm_load_weights(self, directory: str) -> None:
        """Load all weights in place from the files in `directory`.

        Raises:
            ValueError: weights are missing, or do not fit.
        """
        from vllm.config import set_current_vllm_config

        model = self.model_runner.get_model()
        with set_current_vllm_config(self.vllm_config), torch.no_grad():
            loaded = model.load_weights(_tensors(Path(directory)))
        missing = sorted({name for name, _ in model.named_parameters()} - set(loaded or ()))
        if loaded is not None and missing:
            raise ValueError(f"{len(missing)} weights of the model were not given, such as {missing[0]}")

    def rllm_digests(self) -> dict[str, str]:
        """Return the digests of this worker's tensors, see `ScoringEngine.digests`."""
        return vllm_digests(self.model_runner.get_model())


def _tensors(directory: Path) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt", device="cpu") as file:
            for name in file.keys():  # noqa: SIM118  (the file is no mapping)
                yield name, file.get_tensor(name)


V2_ARGUMENTS = (
    "processed_logits",
    "expanded_idx_mapping",
    "idx_mapping_np",
    "pos",
    "top_k",
    "top_p",
    "use_fused_sampler",
)
"""Arguments of the method that truncates and draws, in the sampler of vLLM's model runner V2."""


def record_before_truncation(model_runner: Any) -> bool:
    """Change the sampler of a worker's model runner in place.

    Returns:
        True if it was changed. False if it is not a sampler of vLLM 0.31, or if it checks draft tokens, because vLLM
        computes their log-probs in a different place.
    """
    sampler = getattr(model_runner, "sampler", None)
    if getattr(model_runner, "rejection_sampler", None) is not None:
        return False
    truncate = getattr(sampler, "topk_topp_sampler", None)
    if truncate is not None:
        truncate.forward = _v1(truncate.forward)
        return True
    draw = getattr(sampler, "_sample_random", None)
    if draw is None or tuple(inspect.signature(draw).parameters) != V2_ARGUMENTS:
        return False
    sampler._sample_random = _v2(draw)  # type: ignore[union-attr]
    return True


def _v1(sample: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the sampler of model runner V1, which returns log-probs, (n_row, n_vocabulary)."""

    def sample_with_full_logprobs(logits: Tensor, generators: Any, top_k: Any, top_p: Any) -> tuple[Any, Tensor]:
        # Compute log-probs first, because the sampler changes the logits in place.
        logprobs = logits.log_softmax(dim=-1, dtype=torch.float32)
        return sample(logits, generators, top_k, top_p)[0], logprobs

    return sample_with_full_logprobs


def _v2(sample: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the sampler of model runner V2, which returns logits, (n_row, n_vocabulary).

    vLLM computes the log-probs from them later.
    """

    def sample_with_full_logits(
        processed_logits: Tensor,
        expanded_idx_mapping: Any,
        idx_mapping_np: Any,
        pos: Any,
        top_k: Any,
        top_p: Any,
        use_fused_sampler: Any,
    ) -> tuple[Any, Tensor]:
        truncates = top_k is not None or top_p is not None
        full = processed_logits.clone() if truncates else processed_logits
        rest = (expanded_idx_mapping, idx_mapping_np, pos, top_k, top_p, use_fused_sampler)
        return sample(processed_logits, *rest)[0], full

    return sample_with_full_logits


GREEDY_BELOW = 1e-5
"""vLLM samples greedily below this temperature."""


class Constraints:
    """The grammars of a worker's running requests."""

    def __init__(self, model_runner: Any, grammars: Grammars) -> None:
        self._runner = model_runner
        self._grammars = grammars
        self._responses: dict[str, _Response] = {}

    def responses(self) -> dict[int, _Response]:
        """Return row in the logits -> constrained response, up to the tokens that vLLM has kept."""
        requests = self._runner.requests
        for gone in self._responses.keys() - requests.keys():
            del self._responses[gone]
        found = {}
        for row, name in enumerate(self._runner.input_batch.req_ids):
            request = requests[name]
            schema = (request.sampling_params.extra_args or {}).get(SCHEMA)
            if schema is None:
                continue
            if name not in self._responses:
                self._responses[name] = _Response(self._grammars, schema, np.array(request.prompt_token_ids, np.int32))
            found[row] = self._responses[name]
            found[row].match(request.output_token_ids)
        return found


class _Response:
    def __init__(self, grammars: Grammars, schema: str, prompt: NDArray[np.int32]) -> None:
        self._make: Callable[[], Grammar] = lambda: grammars.of_schema(schema, prompt)
        self._grammar = self._make()
        self._tokens: list[int] = []

    def allowed_tokens(self) -> NDArray[np.bool_]:
        return self._grammar.allowed_tokens()

    def take(self, token: int) -> None:
        self._tokens.append(token)
        # An error here would stop vLLM. The server checks the whole response later, and raises the error.
        with suppress(RuntimeError):
            self._grammar.take(token)

    def match(self, kept: list[int]) -> None:
        """Go back if vLLM has dropped a token.

        Only the lengths are compared, because vLLM's list may end with placeholders.
        """
        if len(kept) == len(self._tokens):
            return
        tokens = [*self._tokens, *kept[len(self._tokens) :]][: len(kept)]
        self._grammar, self._tokens = self._make(), []
        for token in tokens:
            self.take(token)


def constrain(model_runner: Any, grammars: Grammars) -> bool:
    """Change the sampler of a worker's model runner in place.

    Returns:
        True if it was changed. False for vLLM's model runner V2, and for a sampler that checks draft tokens.
    """
    sampler = getattr(model_runner, "sampler", None)
    drafts = getattr(model_runner, "rejection_sampler", None) is not None
    if drafts or not hasattr(sampler, "topk_topp_sampler"):
        return False
    sampler.sample = _constrain_sampling(sampler.sample, Constraints(model_runner, grammars))  # type: ignore[union-attr]
    return True


def _constrain_sampling(sample: Callable[..., Any], constraints: Constraints) -> Callable[..., Any]:
    def sample_with_constraints(logits: Tensor, metadata: Any, *rest: Any) -> Any:
        responses = constraints.responses()
        if not responses:
            return sample(logits, metadata, *rest)
        logprobs = _scale_logits(logits, metadata).log_softmax(dim=-1, dtype=torch.float32)
        allowed_tokens = np.stack([response.allowed_tokens() for response in responses.values()])
        allowed = torch.from_numpy(allowed_tokens).to(logits.device)
        rows = torch.tensor(list(responses), device=logits.device)
        logits = logits.index_copy(0, rows, logits[rows].masked_fill(~allowed, -math.inf))
        tokens = sample(logits, metadata, *rest)[0]
        for response, token in zip(responses.values(), tokens[rows].tolist(), strict=True):
            response.take(token)
        return tokens, logprobs

    return sample_with_constraints


def _scale_logits(logits: Tensor, metadata: Any) -> Tensor:
    """Return logits / temperature, (n_row, n_vocabulary). Greedy rows are unchanged."""
    if metadata.all_greedy:
        return logits
    temperature = torch.where(metadata.temperature < GREEDY_BELOW, 1.0, metadata.temperature)
    return logits / temperature[:, None]
