"""Responses that must match a JSON schema: the tokens that may follow, by the library llguidance."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from threading import Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rllm_core.errors import UnsupportedSamplingError

INSTALL = "pip install 'rllm-local[grammars]'"
WHITESPACE = r"( |\n[ \t]{0,40})?"
"""Between the parts of a response. It is bounded, because small models otherwise write it forever."""


class Marks(Protocol):
    """The tokens around responses and reasoning: a part of `Renderer`."""

    @property
    def stop_ids(self) -> Collection[int]:
        """Return the same as `Renderer.stop_ids`."""

    @property
    def reasoning_ids(self) -> tuple[int, int] | None:
        """Return the same as `Renderer.reasoning_ids`."""


class Grammars:
    """Makes the grammars of one model. Threads may share it."""

    def __init__(self, tokenizer: Any, vocabulary: int, renderer: Marks) -> None:
        """Make one; nothing is loaded until a response needs a grammar.

        Args:
            tokenizer: the Hugging Face tokenizer of the model.
            vocabulary: how many logits the model has.
            renderer: knows the tokens that end responses and reasoning.
        """
        self._hf_tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._stop_ids = sorted(renderer.stop_ids)
        self._reasoning_ids = renderer.reasoning_ids
        self._making = Lock()

    def of_schema(self, schema: str, prompt_ids: NDArray[np.int32]) -> Grammar:
        """Return the grammar of one response.

        Raises:
            UnsupportedSamplingError: llguidance is not installed, or it cannot use the tokenizer or the schema.
        """
        with self._making:
            tokenizer = self._tokenizer
        from llguidance import LLMatcher

        try:
            grammar = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": WHITESPACE})
            problem = LLMatcher.validate_grammar(grammar, tokenizer)
        except ValueError as error:
            problem = str(error)
        if problem:
            raise UnsupportedSamplingError(
                "bad-json-schema",
                f"The JSON schema of the response cannot be used: {problem.strip()}",
                "Remove the part of the schema that the message names.",
            )
        thinks = self._reasoning_ids is not None and _is_open(prompt_ids, self._reasoning_ids)
        return Grammar(LLMatcher(tokenizer, grammar), self._vocabulary, self._stop_ids, self._reasoning_ids, thinks)

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            from llguidance import LLTokenizer
        except ImportError as error:
            raise UnsupportedSamplingError(
                "missing-package",
                "Responses that match a JSON schema need the package llguidance, which is not installed.",
                f"Install it with: {INSTALL}",
            ) from error
        try:
            described = self._hf_tokenizer.backend_tokenizer.to_str()
            return LLTokenizer(described, n_vocab=self._vocabulary, eos_token=self._stop_ids)
        except (AttributeError, ValueError) as error:
            raise UnsupportedSamplingError(
                "json-schema-not-supported",
                f"The tokenizer of this model cannot be constrained to a JSON schema: {error}.",
                "Use a model with a byte-level tokenizer.",
            ) from error


class Grammar:
    """The state of one response."""

    def __init__(
        self,
        matcher: Any,
        vocabulary: int,
        stop_ids: Sequence[int],
        reasoning_ids: tuple[int, int] | None,
        thinks: bool,
    ) -> None:
        """`thinks`: True if the prompt ends within the model's reasoning."""
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._stop_ids = list(stop_ids)
        self._reasoning_ids = reasoning_ids
        self._thinks = thinks
        self._has_tokens = False
        self._problem = ""

    def allowed_tokens(self) -> NDArray[np.bool_]:
        """Return (n_vocabulary,): True for each token that may follow."""
        if self._thinks:
            # Thoughts are free, but the response must not end before its JSON.
            allowed = np.ones(self._vocabulary, np.bool_)
            allowed[self._stop_ids] = False
            return allowed
        try:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        except (RuntimeError, ValueError) as error:
            # `take` raises for this response. An error here would end the other responses of the pass.
            self._problem = str(error)
            return np.ones(self._vocabulary, np.bool_)
        allowed = np.unpackbits(bits, count=self._vocabulary, bitorder="little").astype(np.bool_)
        if self._reasoning_ids is not None and not self._has_tokens:
            allowed[self._reasoning_ids[0]] = True
        if allowed.any() and not self._matcher.is_error():
            return allowed
        self._problem = self._matcher.get_error() or "the model has no token that the grammar allows"
        return np.ones(self._vocabulary, np.bool_)

    def take(self, token: int) -> None:
        """Move on by a sampled token.

        Raises:
            RuntimeError: no token was allowed, so that this token means nothing.
        """
        if self._problem:
            raise RuntimeError(self._problem)
        if self._thinks:
            assert self._reasoning_ids is not None
            self._thinks = token != self._reasoning_ids[1]
        elif self._reasoning_ids is not None and not self._has_tokens and token == self._reasoning_ids[0]:
            self._thinks = True
        elif token not in self._stop_ids:
            self._matcher.consume_token(token)
        self._has_tokens = True


def _is_open(prompt_ids: NDArray[np.int32], reasoning_ids: tuple[int, int]) -> bool:
    """True if the last reasoning of a prompt is not closed."""
    opened, closed = (np.flatnonzero(prompt_ids == each) for each in reasoning_ids)
    return bool(opened.size) and (not closed.size or opened[-1] > closed[-1])
