"""Reading requests for samples. By hand and in one pass: they come by the thousand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_serving.tinker_additions import unpack_seeds
from rllm_tinker_server.limits import TinkerLimits
from rllm_tinker_server.messages import STAND_IN, BaseModelInfo, RequestError, SampleSettings
from rllm_tinker_server.request_errors import NOT_TEXT, json_object, number_of, optional_number_of, text_of
from rllm_tinker_server.sparse import to_dense

LARGEST_ID = 2**31 - 1
MOST_STOPS, LONGEST_STOP = 64, 1024
"""Maximum number of stop strings, and of characters in each. The server searches them after every token."""
LARGEST_SEED = 2**63 - 1
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-6, 1e6
"""Limits of temperatures above 0. Beyond them, logits / temperature leave float32 or are all equal."""
NOT_TOKENS = "The prompt's chunks have no tokens, or tokens that are not whole numbers, 0 or more."


@dataclass(frozen=True, kw_only=True, eq=False)
class TargetTokens:
    """`target_prompt_logprobs`. The answer has the same layout, dense or sparse."""

    tokens: NDArray[np.int64]
    """(length of the prompt - 1, k), -1 where nothing is requested."""
    rows: NDArray[np.int64] | None = None
    """Start of each row, (length of the prompt,), if the client sent the tensor in sparse rows."""
    columns: NDArray[np.int64] | None = None
    """Column of each listed entry."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SampleRequest:
    sampler_id: str
    number: int
    prompts: tuple[NDArray[np.int32], ...]
    """The prompt of each sample. They are equal, except in requests with several (`rllm_serving.tinker_additions`)."""
    settings: SampleSettings
    prompt_logprobs: bool
    last_prompt_logprobs: int | None
    """How many of them are asked for; None: all."""
    top_of_prompt: int
    """How many of the likeliest tokens of each position of the prompt."""
    top_of_samples: int
    targets: TargetTokens | None = None
    """Other tokens to score instead of the tokens of the prompt."""
    draws: int = 0
    """Number of tokens to draw for each position of the prompt from the second."""

    @property
    def scores_prompt(self) -> bool:
        """True if the request asks for more than samples."""
        return self.prompt_logprobs or bool(self.top_of_prompt or self.draws) or self.targets is not None

    @property
    def most_tokens(self) -> int:
        """Maximum tokens of all samples, each with its prompt."""
        return sum(map(len, self.prompts)) + len(self.prompts) * self.settings.max_tokens


TOP = ("topk_prompt_logprobs", "topk_sample_logprobs")
MOST_TOP, MOST_TOP_NUMBERS = 128, 1 << 24
"""Likeliest tokens of a position, and of all positions of a request together."""


def sample_request(body: bytes, base: BaseModelInfo, limits: TinkerLimits) -> SampleRequest:
    """Parse a sample request. Raise RequestError if it is invalid."""
    found = json_object(body)
    # The stand-in for stable_reinforce needs no more than the log-probs, so nothing is recorded.
    if found.get("record_stability_info") and not limits.stand_in_losses:
        raise RequestError(
            f"record_stability_info: the loss {STAND_IN} needs it. Use a different loss, such as importance_sampling, "
            "or start the server with --stand-in-losses."
        )
    count = number_of(found, "num_samples") if "num_samples" in found else 1
    if not 1 <= count <= limits.max_samples_per_request:
        most = limits.max_samples_per_request
        raise RequestError(f"num_samples is {count}. It must be between 1 and {most}.")
    params = found.get("sampling_params")
    if not isinstance(params, dict):
        raise RequestError("sampling_params are missing.")
    seeds = _seeds(params.get("seed"), count)
    chunks = _chunks(found.get("prompt"))
    prompts = tuple(chunks) if seeds else (np.concatenate(chunks),) * count
    if len(prompts) != count:
        raise RequestError(f"The request has {count} seeds, one for each sample, and {len(prompts)} prompts.")
    top_of_prompt, top_of_samples = (_top(found, key, base.vocabulary) for key in TOP)
    scores_tokens = bool(found.get("prompt_logprobs"))
    draws = _top(found, "prompt_alt_tokens_k", base.vocabulary)
    targets = _targets(found.get("target_prompt_logprobs"), len(prompts[0]), limits.max_sparse_numbers)
    longest = max(map(len, prompts))
    # A prompt that fills the context has no response, but has log-probs.
    scores_prompt = scores_tokens or top_of_prompt or draws or targets is not None
    room, needed = base.max_context - longest, 0 if scores_prompt else 1
    if room < needed:
        raise RequestError(
            f"The prompt has {longest} tokens. {base.name} has a context of {base.max_context} for prompt and response."
        )
    last = optional_number_of(found, "prompt_logprobs_last_n")
    if last is not None and not (scores_tokens and 1 <= last < longest):
        raise RequestError("prompt_logprobs_last_n needs prompt_logprobs, and is from 1 to the prompt's length - 1.")
    request = SampleRequest(
        sampler_id=text_of(found, "sampling_session_id"),
        number=number_of(found, "seq_id"),
        prompts=prompts,
        settings=_settings(params, room, base.vocabulary, seeds),
        prompt_logprobs=scores_tokens,
        last_prompt_logprobs=last,
        top_of_prompt=top_of_prompt,
        top_of_samples=top_of_samples,
        targets=targets,
        draws=draws,
    )
    if request.most_tokens * max(top_of_prompt, top_of_samples, draws) > MOST_TOP_NUMBERS:
        raise RequestError(
            f"{', '.join(TOP)} and prompt_alt_tokens_k request more than {MOST_TOP_NUMBERS} numbers. Lower them, or "
            "request fewer tokens."
        )
    return request


def _top(found: Mapping[str, Any], key: str, vocabulary: int) -> int:
    number = optional_number_of(found, key) or 0
    if number > min(MOST_TOP, vocabulary):
        raise RequestError(f"{key} is {number}. A position has {min(MOST_TOP, vocabulary)} at most.")
    return number


def _targets(found: Any, length: int, most: int) -> TargetTokens | None:
    """`length`: of the prompt."""
    if found is None:
        return None
    try:
        rows, columns = (found.get(name) for name in ("sparse_crow_indices", "sparse_col_indices"))
        values, shape = _integers(found["data"]), tuple(_integers(found["shape"]).tolist())
        if len(shape) != 2 or shape[0] != length - 1 or not 0 <= shape[0] * shape[1] <= most:
            raise ValueError(f"its shape is {shape}, and must be ({length - 1}, k), with at most {most} numbers")
        if rows is None:
            return TargetTokens(tokens=values.reshape(shape))
        starts, places = _integers(rows), _integers(columns)
        return TargetTokens(tokens=to_dense(values, starts, places, shape, missing=-1), rows=starts, columns=places)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise RequestError(f"target_prompt_logprobs is not a tensor of token ids: {error}.") from error


def _integers(found: Any) -> NDArray[np.int64]:
    """Return a list of whole numbers as an array. Raises ValueError for other numbers, which numpy would round."""
    array = np.array(found) if found else np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind != "i":
        raise ValueError(f"{found!r:.80} is not a list of whole numbers")
    return array


def _seeds(seed: Any, count: int) -> tuple[int, ...]:
    """One for every sample, where the request has several prompts."""
    return tuple(unpack_seeds(seed, count) or ()) if isinstance(seed, int) else ()


def _chunks(found: Any) -> list[NDArray[np.int32]]:
    """The tokens of each chunk of the prompt, one at least."""
    chunks = found.get("chunks") if isinstance(found, dict) else None
    if not isinstance(chunks, list) or not all(isinstance(chunk, dict) for chunk in chunks):
        raise RequestError("prompt has no chunks.")
    if any(chunk.get("type", "encoded_text") != "encoded_text" for chunk in chunks):
        raise RequestError(NOT_TEXT)
    arrays = [_tokens(chunk.get("tokens")) for chunk in chunks]
    if not sum(map(len, arrays)):
        raise RequestError("The prompt has no tokens.")
    return arrays


def _tokens(found: Any) -> NDArray[np.int32]:
    try:
        array = _integers(found)
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError(NOT_TOKENS) from error
    if array.size and not 0 <= array.min() <= array.max() <= LARGEST_ID:
        raise RequestError(NOT_TOKENS)
    return array.astype(np.int32)


MOST_ROWS = 16


def rows_of(found: Mapping[str, Any], base: BaseModelInfo) -> list[NDArray[np.int32]]:
    """Return the token rows of a request. Raise RequestError if there are none, too many, or too long ones."""
    rows = found.get("rows")
    if not isinstance(rows, list) or not 0 < len(rows) <= MOST_ROWS:
        raise RequestError(f"rows must be a list of 1 to {MOST_ROWS} lists of tokens.")
    arrays = [_tokens(row) for row in rows]
    if not all(1 < len(row) <= base.max_context for row in arrays):
        raise RequestError(f"Each row must have 2 to {base.max_context} tokens.")
    return arrays


def _settings(params: Mapping[str, Any], room: int, vocabulary: int, seeds: tuple[int, ...]) -> SampleSettings:
    """Read the settings and check their types. `room`: how many tokens fit after the prompt."""
    max_tokens, seed, top_k = (_read_integer(params, name) for name in ("max_tokens", "seed", "top_k"))
    if max_tokens is not None and max_tokens < 1:
        raise RequestError(f"max_tokens is {max_tokens}. Request at least one token.")
    stop_ids, stop_strings = _stop(params.get("stop"))
    return SampleSettings(
        max_tokens=room if max_tokens is None else min(max_tokens, room),
        seed=None if seed is None else seed % LARGEST_SEED,
        temperature=_real(params, "temperature"),
        # More tokens than there are mean all of them; larger numbers do not fit into a tensor.
        top_k=-1 if top_k is None else min(top_k, vocabulary),
        top_p=_real(params, "top_p"),
        stop_ids=stop_ids,
        stop_strings=stop_strings,
        seeds=seeds,
    )


def check_settings(settings: SampleSettings) -> None:
    """Raise RequestError if a value is out of range."""
    if settings.temperature != 0 and not MIN_TEMPERATURE <= settings.temperature <= MAX_TEMPERATURE:
        raise RequestError(
            f"temperature is {settings.temperature}. It must be 0 (greedy) or a number of {MIN_TEMPERATURE:g} to "
            f"{MAX_TEMPERATURE:g}."
        )
    if not 0 < settings.top_p <= 1:
        raise RequestError(f"top_p is {settings.top_p}. It must be above 0 and at most 1.")
    if settings.top_k < -1:
        raise RequestError(f"top_k is {settings.top_k}. It must be a number of tokens, or -1 for all.")
    if "" in settings.stop_strings:
        raise RequestError("A stop string is empty. Every response would end at once. Remove it.")


def _read_integer(params: Mapping[str, Any], name: str) -> int | None:
    value = params.get(name)
    if isinstance(value, bool) or not isinstance(value, int | None):
        raise RequestError(f"{name} is {value!r:.80}. It must be a whole number.")
    return value


def _real(params: Mapping[str, Any], name: str) -> float:
    value = params.get(name, 1.0)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} is {value!r:.80}. It must be a number.")
    try:
        return float(value)
    except OverflowError as error:
        raise RequestError(f"{name} is too large for a floating-point number.") from error


def _stop(stop: Any) -> tuple[frozenset[int] | None, tuple[str, ...]]:
    """Return stop ids and stop strings. None and strings keep the model's own stop tokens; a list of ids replaces them.

    An empty list removes all stop tokens.
    """
    if stop is None:
        return None, ()
    texts = [stop] if isinstance(stop, str) else stop
    if isinstance(texts, list) and texts and all(isinstance(part, str) for part in texts):
        if len(texts) > MOST_STOPS or max(map(len, texts)) > LONGEST_STOP:
            raise RequestError(f"stop has at most {MOST_STOPS} strings of at most {LONGEST_STOP} characters.")
        return None, tuple(texts)
    if isinstance(stop, list) and all(isinstance(part, int) for part in stop):
        return frozenset(stop), ()
    raise RequestError("stop must be a string, a list of strings, or a list of token ids.")
