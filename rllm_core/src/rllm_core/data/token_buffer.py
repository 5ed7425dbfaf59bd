"""TokenBuffer: stores every token of a trajectory exactly once, for any number of turns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


class TokenSpan(NamedTuple):
    """The position of a model call in its buffer: prompt ``segment_start:response_start``, response
    ``response_start:end``."""

    segment_start: int
    response_start: int
    end: int


class TokenBuffer:
    """Append-only columns: token ids, log-probs, and a flag for sampled tokens.

    If a turn's prompt extends the tokens so far, only the new tokens are appended. Otherwise (an agent rewrites its
    history), the turn starts a new *segment*, which becomes a separate row in training. Each such start is a prefix
    break.
    """

    __slots__ = ("_ids", "_length", "_logprobs", "_sampled", "segment_starts", "silent_turns", "turns")

    def __init__(self) -> None:
        self._length = 0
        self._ids = np.empty(32, np.int32)
        self._logprobs = np.zeros(32, np.float32)
        self._sampled = np.zeros(32, np.bool_)
        self.segment_starts: list[int] = []
        self.turns = 0
        self.silent_turns = 0
        """Number of turns in which the model sampled nothing."""

    @property
    def ids(self) -> NDArray[np.int32]:
        """(n,) all tokens so far. A view."""
        return self._ids[: self._length]

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """(n,) log-prob of each sampled token at the time of sampling, NaN if unknown, 0 for other tokens. A view."""
        return self._logprobs[: self._length]

    @property
    def sampled(self) -> NDArray[np.bool_]:
        """(n,) True if the model sampled the token. A view."""
        return self._sampled[: self._length]

    def columns(self, start: int, end: int) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.bool_]]:
        """Return ids, log-probs and the sampled flag of the tokens ``start:end``, each (end - start,). Views."""
        return self._ids[start:end], self._logprobs[start:end], self._sampled[start:end]

    @property
    def prefix_breaks(self) -> int:
        """Number of turns whose prompt did not extend the tokens before it."""
        return max(0, len(self.segment_starts) - 1)

    def __len__(self) -> int:
        return self._length

    def append_turn(self, prompt_ids: ArrayLike, response_ids: ArrayLike, logprobs: ArrayLike | None) -> TokenSpan:
        """Append one model call.

        Args:
            prompt_ids: (n_prompt,) all tokens of the prompt, including earlier turns.
            response_ids: (n_response,) the sampled tokens.
            logprobs: (n_response,) log-probs of the sampled tokens. None if all are unknown, NaN for single unknown
                values. Unknown values are stored as NaN.

        Raises:
            ValueError: `logprobs` and `response_ids` differ in length, or ids are not a flat list.
        """
        prompt = np.asarray(prompt_ids, np.int32)
        response = np.asarray(response_ids, np.int32)
        if prompt.ndim != 1 or response.ndim != 1:
            raise ValueError(f"token ids of shapes {prompt.shape} and {response.shape}; expected flat lists")
        if logprobs is not None:
            logprobs = np.asarray(logprobs, np.float32)
            if logprobs.shape != response.shape:
                raise ValueError(
                    f"{logprobs.size} log-probs for {response.size} response tokens; pass None if they are unknown"
                )
        if not prompt.size and response.size:
            raise ValueError("a model call starts from at least one token: what is sampled first cannot be trained on")
        segment_start = self._segment_for(prompt)
        fresh = prompt[self._length - segment_start :]
        response_start = self._length + fresh.size
        end = response_start + response.size
        self._reserve(end)
        self._ids[self._length : response_start] = fresh
        self._ids[response_start:end] = response
        self._logprobs[response_start:end] = np.nan if logprobs is None else logprobs
        self._sampled[response_start:end] = True
        self._length = end
        self.turns += 1
        self.silent_turns += not response.size
        return TokenSpan(segment_start, response_start, end)

    def _segment_for(self, prompt: NDArray[np.int32]) -> int:
        """Return the start of the open segment if `prompt` extends it, otherwise the start of a new segment."""
        if self.segment_starts:
            start = self.segment_starts[-1]
            so_far = self._ids[start : self._length]
            # For a short prompt, `all` takes four times as long.
            if prompt.size >= so_far.size and not np.count_nonzero(prompt[: so_far.size] != so_far):
                return start
        self.segment_starts.append(self._length)
        return self._length

    def _reserve(self, length: int) -> None:
        if length <= self._ids.size:
            return
        capacity = max(length, 2 * self._ids.size)
        for name in ("_ids", "_logprobs", "_sampled"):
            old = getattr(self, name)
            grown = np.zeros(capacity, old.dtype)
            grown[: self._length] = old[: self._length]
            setattr(self, name, grown)
