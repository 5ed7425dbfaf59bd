"""Additions of our server to the Tinker API. The server reports them in its health route.

Several prompts per request: The API has one prompt and one seed per request. A request costs the client milliseconds,
which is longer than a small model needs for a thousand tokens. With the addition, a request for k samples has k text
chunks, one prompt each, and one number that contains k seeds. Each seed has 31 bits. A 1 bit above them makes the
number longer than any plain seed. All other requests keep their usual meaning.

Comparison of tensors: In the API, trainers and samplers can only score tokens. With the addition, two more routes
compare a sampler's tensors with the trained weights.
"""

from __future__ import annotations

from collections.abc import Sequence

BITS = 31
"""Number of bits that are sent for each seed, including a plain seed. Services may store a seed in 32 bits."""
LONGEST_PLAIN = 64
"""Maximum number of bits of a plain seed."""
MAX_SEEDS = 256
"""Maximum number of samples in one request. JSON readers limit the number of digits of a number."""
PROMPTS_KEY = "prompts_per_request"
"""Key in the health route's response with the maximum number of prompts in a request."""
API = "/api/v1"
"""Prefix of all routes."""
MODEL_KEY = "base_model"
"""Key in the health route's response with the base model's ``layers``, ``vocabulary`` and ``dtype``."""
TENSORS_ROUTE = "/compare_tensors"
"""POST ``model_id`` and ``sampler_id``. The response has ``tensors``: the names of the sampler's tensors that differ
from the trained weights. Each has the name of the trained tensor whose values it has, or null."""
SUSPECTS_ROUTE = "/score_suspects"
"""POST ``model_id`` and ``rows``. The response has ``suspects``: the log-probs of each row's tokens except the first,
by the name of the `KnownFault` that the trained weights have."""


def pack_seeds(seeds: Sequence[int]) -> int:
    """Return the number that encodes the seeds of a request's samples. A single seed is truncated to 31 bits.

    Raises:
        ValueError: there are more than `MAX_SEEDS` seeds, or none.
    """
    if not 1 <= len(seeds) <= MAX_SEEDS:
        raise ValueError(f"{len(seeds)} seeds do not fit into a request")
    if len(seeds) == 1:
        return truncate_seed(seeds[0])
    packed = 1 << max(BITS * len(seeds), LONGEST_PLAIN)
    for index, seed in enumerate(seeds):
        packed |= truncate_seed(seed) << (BITS * index)
    return packed


def unpack_seeds(number: int, count: int) -> list[int] | None:
    """Return the seeds of a request for `count` samples. None if the number is a plain seed."""
    if count == 1 or number.bit_length() <= LONGEST_PLAIN:
        return None
    return [(number >> (BITS * index)) & ((1 << BITS) - 1) for index in range(count)]


def truncate_seed(seed: int) -> int:
    """Return the low 31 bits of a seed, which are sent."""
    return seed & ((1 << BITS) - 1)
