"""Constrain responses to a JSON schema in vLLM's workers, after the log-probs are computed.

vLLM's own structured output removes tokens before its sampler gets the logits, so its log-probs would be the values
after this removal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_backend_kit.grammars import Grammar, Grammars
from rllm_vllm.messages import SCHEMA

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

    def allowed(self) -> NDArray[np.bool_]:
        return self._grammar.allowed()

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
    sampler.sample = _constrained(sampler.sample, Constraints(model_runner, grammars))  # type: ignore[union-attr]
    return True


def _constrained(sample: Callable[..., Any], constraints: Constraints) -> Callable[..., Any]:
    def sample_constrained(logits: Tensor, metadata: Any, *rest: Any) -> Any:
        responses = constraints.responses()
        if not responses:
            return sample(logits, metadata, *rest)
        logprobs = _scaled(logits, metadata).log_softmax(dim=-1, dtype=torch.float32)
        allowed = torch.from_numpy(np.stack([response.allowed() for response in responses.values()])).to(logits.device)
        rows = torch.tensor(list(responses), device=logits.device)
        logits = logits.index_copy(0, rows, logits[rows].masked_fill(~allowed, -math.inf))
        tokens = sample(logits, metadata, *rest)[0]
        for response, token in zip(responses.values(), tokens[rows].tolist(), strict=True):
            response.take(token)
        return tokens, logprobs

    return sample_constrained


def _scaled(logits: Tensor, metadata: Any) -> Tensor:
    """Return logits / temperature, (n_row, n_vocabulary). Greedy rows are unchanged."""
    if metadata.all_greedy:
        return logits
    temperature = torch.where(metadata.temperature < GREEDY_BELOW, 1.0, metadata.temperature)
    return logits / temperature[:, None]
