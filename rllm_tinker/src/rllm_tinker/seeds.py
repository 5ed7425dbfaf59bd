"""Several prompts with a seed each in one request, for servers that say they take that (decision 0020).

The API has one prompt and one seed per request, and a request costs the client milliseconds: more than a small model
needs for a thousand tokens. A server that takes more says so in its answer to the health route. A request for k samples
then has k chunks of text, each the prompt of one sample, and a seed that holds k of them: 31 bits each, side by side,
below a bit that makes the number longer than any plain seed. Any other request means what it always means.
"""

from __future__ import annotations

from collections.abc import Sequence

BITS = 31
"""Bits of a seed that are sent, also of a plain one: services may keep it in 32."""
LONGEST_PLAIN = 64
"""Bits of a plain seed at most."""
MOST = 256
"""Samples with a prompt and a seed each in one request at most. JSON readers bound the digits of a number."""
ADVERTISED = "prompts_per_request"
"""Key of the answer to the health route that says how many prompts a request may have."""


def seed_of_request(seeds: Sequence[int]) -> int:
    """The number that stands for the seeds of a request's samples; a single seed is cut to 31 bits.

    Raises:
        ValueError: there are too many, or none.
    """
    if not 1 <= len(seeds) <= MOST:
        raise ValueError(f"{len(seeds)} seeds do not fit into a request")
    if len(seeds) == 1:
        return cut(seeds[0])
    packed = 1 << max(BITS * len(seeds), LONGEST_PLAIN)
    for index, seed in enumerate(seeds):
        packed |= cut(seed) << (BITS * index)
    return packed


def seeds_in(number: int, count: int) -> list[int] | None:
    """The seeds of a request for `count` samples; None when the number is a plain seed."""
    if count == 1 or number.bit_length() <= LONGEST_PLAIN:
        return None
    return [(number >> (BITS * index)) & ((1 << BITS) - 1) for index in range(count)]


def cut(seed: int) -> int:
    """The part of a seed that is sent."""
    return seed & ((1 << BITS) - 1)
